"""The sampler of elastic scripts, which leaves out what was trained on in this epoch."""

import math
import random
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from elastane.integrations.horovod.world import rank, size


class ElasticSampler(Sampler[int]):
    """Divides the samples that remain in an epoch among the processes.

    A script calls `record_batch` after each batch and `set_epoch` after each epoch, and hands the sampler to
    a `TorchState`. Processes get equally many samples: up to ``size() - 1`` are repeated at the end of an
    epoch.

    Args:
        dataset: with a length.
        shuffle: in another order in each epoch.
        seed: of the order, the same in all processes.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.indices: list[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; call it at the end of the one before."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that this process has trained on one of its batches.

        Args:
            batch_idx: its number since the iteration began.
            batch_size: samples per batch of this process.
        """
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Iterable[int]) -> None:
        """Record that samples were trained on."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Return the samples of one of this process's batches."""
        begin = batch_idx * batch_size
        return self.indices[begin : begin + batch_size]

    def reset(self) -> None:
        """Divide what remains of the epoch among the present processes."""
        self.rank, self.num_replicas = rank(), size()
        self.remaining_indices = [
            index for index in range(len(self.dataset)) if index not in self.processed_indices
        ]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Return what has been trained on; the indices are a sorted tensor."""
        processed = torch.tensor(sorted(self.processed_indices), dtype=torch.int64)
        return {"epoch": self.epoch, "processed_indices": processed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue an epoch with the present processes."""
        self.epoch = state_dict["epoch"]
        self.processed_indices = {int(index) for index in state_dict["processed_indices"]}
        self.reset()

    def __iter__(self) -> Iterator[int]:
        order = list(self.remaining_indices)
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        if order:
            order += (order * self.num_replicas)[: self.total_size - len(order)]
        self.indices = order[self.rank : self.total_size : self.num_replicas]
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
