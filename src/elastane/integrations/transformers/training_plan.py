"""The order of a training: its steps, the place of each in its epoch, and the samples of each epoch."""

from fractions import Fraction
from typing import Any

import msgspec
import torch

from elastane.common.errors import BadInput
from elastane.run.protocol.sampling import find_step_samples, mix


class TrainingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The division of a training into epochs, steps and batches.

    Args:
        samples: samples per epoch.
        batch: samples of a batch of the Trainer.
        accumulation: batches per step: the Trainer accumulates the gradients of this number.
        virtual_ranks: V.
        steps: steps of the whole training.
    """

    samples: int
    batch: int
    accumulation: int
    virtual_ranks: int
    steps: int

    @property
    def global_batch(self) -> int:
        """The samples per step."""
        return self.batch * self.accumulation

    @property
    def microbatch(self) -> int:
        """The samples per virtual rank."""
        return self.global_batch // self.virtual_ranks

    @property
    def cuts_batches(self) -> bool:
        """A virtual rank computes another part of a step than one batch."""
        return self.microbatch != self.batch

    def count_batches(self, step: int) -> int:
        """Return the number of the Trainer's batches in a step; the last one of an epoch may have fewer."""
        return -(-find_step_samples(step, self.samples, self.global_batch).count // self.batch)

    def compute_share(self, step: int, virtual_rank: int) -> Fraction:
        """Return the part of a batch that a virtual rank computes; above 1: it computes several batches."""
        count = find_step_samples(step, self.samples, self.global_batch).count
        begin = virtual_rank * self.microbatch
        end = min(begin + self.microbatch, count)
        share = Fraction(0)
        for first in range(begin - begin % self.batch, end, self.batch):
            after = min(first + self.batch, count)
            share += Fraction(min(end, after) - max(begin, first), after - first)
        return share

    def compute_epoch(self, step: int) -> float:
        """Return the epochs trained after a step, as a Trainer counts: by batches."""
        found = find_step_samples(step, self.samples, self.global_batch)
        batches = -(-self.samples // self.batch)
        return found.epoch + min(-(-found.stop // self.batch), batches) / batches

    def find_epoch(self, step: int) -> int:
        """Return the number of the epoch of a step, from 0."""
        return find_step_samples(step, self.samples, self.global_batch).epoch

    def begins_epoch(self, step: int) -> bool:
        return find_step_samples(step, self.samples, self.global_batch).start == 0


class SampleOrder:
    """The order of the samples in each epoch, drawn from the batch sampler of a data loader.

    A sampler may have a generator of its own, which moves on with each epoch. So the epochs are drawn one
    after the other, and every process draws the same.

    Args:
        batch: samples of a batch.
        seed: for samplers that draw from torch's global generator.
    """

    def __init__(self, loader: Any, batch: int, seed: int) -> None:
        self._loader, self._batch, self._seed = loader, batch, seed
        self._following = 0
        self._last: list[int] = []

    def __call__(self, epoch: int) -> list[int]:
        """Return the dataset indices of an epoch, in order."""
        while self._following <= epoch:
            self._last = self._draw(self._following)
            self._following += 1
        assert epoch == self._following - 1, "a run reads its epochs in order"
        return self._last

    def _draw(self, epoch: int) -> list[int]:
        if callable(set_epoch := getattr(self._loader, "set_epoch", None)):
            set_epoch(epoch)
        sampler = self._loader.batch_sampler
        inner = getattr(sampler, "batch_sampler", sampler)
        if callable(set_epoch := getattr(inner, "set_epoch", None)):
            set_epoch(epoch)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(mix(mix(self._seed) ^ epoch) >> 1)
            batches = [list(batch) for batch in sampler]
        sizes = {len(batch) for batch in batches[:-1]} - {self._batch}
        if sizes or not batches or len(batches[-1]) > self._batch:
            raise BadInput(
                f"the sampler of get_train_dataloader makes batches of other sizes than {self._batch}",
                means="all virtual ranks of a step have the same number of samples",
                do="return a DataLoader with batch_size=self.args.per_device_train_batch_size",
            )
        return [index for batch in batches for index in batch]


class LossScale(msgspec.Struct, frozen=True):
    """The numbers that make the loss of a microbatch a term of the step's loss.

    Args:
        accumulation: the number of batches in the step, as the Trainer knows it.
        divisor: divides the loss, and the number of items in the step that the loss is given.
    """

    accumulation: float
    divisor: float


def is_divided(loss: float, of_twice_as_many: float) -> bool:
    """Return whether a loss is divided by the number of items, or of batches, in the step.

    Args:
        of_twice_as_many: of the same, in a step that is said to have twice as many items and batches.
    """
    return loss == 2 * of_twice_as_many


def choose_scale(batches: int, share: Fraction, *, divided: bool) -> LossScale:
    """Return the scale with which the terms of all virtual ranks have the sum that the Trainer has.

    Args:
        batches: the number of the Trainer's batches in the step.
        share: the part of a batch that the virtual rank computes.
        divided: see `is_divided`.
    """
    if divided:
        return LossScale(_to_number(batches / share), 1)
    # Terms that the loss divides by the items keep their value: both numbers are divided.
    return LossScale(batches, _to_number(1 / share))


def _to_number(fraction: Fraction) -> float:
    """Return an int if it is one, with which the Trainer's own arithmetic has the bits that it always had."""
    return fraction.numerator if fraction.denominator == 1 else float(fraction)
