"""The numbers of a training: the steps, and the place of each step in its epoch."""

import math

import msgspec

from elastane.run.protocol.sampling import count_steps_per_epoch, find_step_samples


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
    def steps_per_epoch(self) -> int:
        return count_steps_per_epoch(self.samples, self.global_batch)

    def count_microbatches(self, step: int) -> int:
        """Return the number of microbatches in a step; the last one of an epoch may have fewer."""
        return -(-find_step_samples(step, self.samples, self.global_batch).count // self.microbatch)

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


def count_steps(steps_per_epoch: int, max_steps: int, epochs: float) -> int:
    """Return the steps of the training, as a Trainer counts: ``max_steps`` takes precedence."""
    return max_steps if max_steps > 0 else math.ceil(epochs * steps_per_epoch)
