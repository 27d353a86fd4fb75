"""Samples of virtual ranks: loaded by position, collated as PyTorch's own loader does."""

import random
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from torch.utils.data import default_collate

from elastane.api.errors import BadInput
from elastane.protocol.sampling import (
    StepSamples,
    random_key,
    sample_hash,
    sample_index,
    step_samples,
    steps_per_epoch,
)

Collate = Callable[[list[Any]], Any]
MASK = (1 << 64) - 1


class MapDataset(Protocol):
    """Any map-style dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...  # noqa: ANN401 - a sample is the user's


class Batch(msgspec.Struct, frozen=True):
    """The samples of one virtual rank, collated, with their ledger entry."""

    inputs: Any
    samples: int
    checksum: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a dataset is dealt to steps and virtual ranks; equal on every worker.

    Args:
        length: of the dataset, in samples.
        global_batch: samples per step.
        microbatch: samples per virtual rank.
        virtual_ranks: V.
        steps: how many there will be.
        seed: of the run.
    """

    length: int
    global_batch: int
    microbatch: int
    virtual_ranks: int
    steps: int
    seed: int

    def samples(self, step: int) -> StepSamples:
        return step_samples(step, self.length, self.global_batch)

    def filled(self, step: int) -> int:
        """Virtual ranks that have samples in this step: all, but for the end of an epoch."""
        return -(-self.samples(step).count // self.microbatch)


def make_plan(
    dataset: MapDataset,
    global_batch: int,
    microbatch: int,
    until: str | int,
    *,
    virtual_ranks: int | None,
    seed: int,
) -> Plan:
    """Check what the user asked for and work out the rest.

    Raises:
        BadInput: numbers that do not fit together.
    """
    length = len(dataset)
    if length < 1:
        raise BadInput("the dataset is empty", means="there is nothing to train on", do="check its length")
    if global_batch < 1 or microbatch < 1:
        raise BadInput(
            f"global_batch={global_batch}, microbatch={microbatch}",
            means="a batch has at least one sample",
            do="pass positive numbers",
        )
    if virtual_ranks is not None:
        if global_batch % virtual_ranks:
            raise BadInput(
                f"a global batch of {global_batch} cannot be cut into {virtual_ranks} equal virtual ranks",
                means="every virtual rank has the same number of samples",
                do=f"choose --virtual-ranks that divides {global_batch}",
            )
        microbatch = global_batch // virtual_ranks
    if global_batch % microbatch:
        raise BadInput(
            f"a global batch of {global_batch} is not a multiple of the microbatch of {microbatch}",
            means="every virtual rank computes one microbatch",
            do=f"choose a microbatch that divides {global_batch}",
        )
    return Plan(
        length=length,
        global_batch=global_batch,
        microbatch=microbatch,
        virtual_ranks=global_batch // microbatch,
        steps=_steps(until, steps_per_epoch(length, global_batch)),
        seed=seed,
    )


def _steps(until: str | int, per_epoch: int) -> int:
    if isinstance(until, int) and until > 0:
        return until
    match = re.fullmatch(r"\s*(\d+)\s*(steps?|epochs?)\s*", str(until))
    if match is None or int(match[1]) < 1:
        raise BadInput(
            f"until={until!r} is not understood",
            means="a run ends after a number of steps or epochs",
            do="pass '3 epochs', '500 steps' or a number of steps",
        )
    return int(match[1]) * (per_epoch if match[2].startswith("epoch") else 1)


def seed_everything(key: int) -> None:
    """Seed the generators a model or dataset may draw from."""
    torch.manual_seed(key)
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)  # noqa: NPY002 - datasets use the global generator


class Deck:
    """Deals the samples of virtual ranks."""

    def __init__(self, dataset: MapDataset, plan: Plan, collate: Collate | None) -> None:
        self._dataset = dataset
        self._plan = plan
        self._collate = collate or default_collate

    def deal(self, step: int, virtual_rank: int) -> Batch | None:
        """The batch of a virtual rank, with its random numbers seeded; None if it has no samples.

        Raises:
            BadInput: the dataset has changed its length since the run began.
        """
        plan = self._plan
        seed_everything(random_key(plan.seed, step, virtual_rank))
        samples = plan.samples(step)
        positions = samples.of_virtual_rank(virtual_rank, plan.microbatch)
        if not positions:
            return None
        indices = [sample_index(p, plan.length, plan.seed, samples.epoch) for p in positions]
        return Batch(
            inputs=self._collate([self._dataset[index] for index in indices]),
            samples=len(indices),
            checksum=sum(map(sample_hash, indices)) & MASK,
        )


def deal_in_order(dataset: MapDataset, positions: Sequence[int], collate: Collate | None) -> Batch:
    """A batch of an evaluation: samples as they stand in the dataset."""
    inputs = (collate or default_collate)([dataset[index] for index in positions])
    return Batch(inputs, len(positions), sum(map(sample_hash, positions)) & MASK)
