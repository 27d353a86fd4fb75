"""A pass over a dataset, spread over the workers, with exact sums."""

import math
from collections.abc import Iterator
from typing import Any

import torch

from elastane.api.heartbeat import Phase
from elastane.api.records import EventLine
from elastane.protocol.mesh import Leaf
from elastane.runtime.data.decks import Collate, MapDataset, deal_in_order
from elastane.runtime.training import Training


class Evaluation:
    """Iterate it and `add` what is to be summed; its sums are exact and the same on every worker.

    Attributes:
        sums: of everything added, by name; complete after the iteration.
    """

    def __init__(
        self, training: Training, dataset: MapDataset, microbatch: int, collate: Collate | None
    ) -> None:
        self._training, self._dataset = training, dataset
        self._microbatch, self._collate = microbatch, collate
        self._added: dict[str, list[float]] = {}
        self.sums: dict[str, float] = {}

    def __iter__(self) -> Iterator[Any]:
        training = self._training
        length, size = len(self._dataset), -(-len(self._dataset) // self._microbatch)
        policy = training.spec.checkpoints
        due = policy is not None and policy.each_evaluation
        training.before_step()
        round_ = training.round("evaluate", size, checkpoint=due)
        for rank in round_:
            positions = range(rank * self._microbatch, min((rank + 1) * self._microbatch, length))
            training.heartbeat.beat(Phase.DATA)
            batch = deal_in_order(self._dataset, positions, self._collate)
            training.heartbeat.beat(Phase.COMPUTE)
            self._added = {}
            training.seed_evaluation(rank)
            versions = training.state.versions()
            yield batch.inputs
            training.state.check_versions(versions)
            # Each worker computes others: what they do to buffers must not last.
            training.state.restore_buffers()
            added = {name: math.fsum(values) for name, values in self._added.items()}
            leaf = Leaf(rank, training.worker, samples=batch.samples, checksum=batch.checksum, sums=added)
            round_.done(leaf)
        training.committed(round_.outcome)
        training.end_evaluation()
        self.sums = dict(round_.outcome.sums)
        training.measured(self.sums)
        line = EventLine(time=0.0, kind="evaluation", step=training.step, detail=dict(self.sums))
        training.reporter.happened(f"evaluation-{round_.outcome.round}", line)
        training.heartbeat.beat(Phase.USER)

    def add(self, **values: float | torch.Tensor) -> None:
        """Add to the named sums, in fp64; tensors are summed first."""
        for name, value in values.items():
            number = value.double().sum().item() if isinstance(value, torch.Tensor) else float(value)
            self._added.setdefault(name, []).append(number)
