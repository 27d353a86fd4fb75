"""The schedule by which a run takes checkpoints."""

from elastane.run.nouns.spec import CheckpointPolicy


class CheckpointSchedule:
    """The steps and events after which a policy requests a checkpoint.

    Args:
        policy: the policy of the run; None: the run has no checkpoints.

    Attributes:
        each_epoch: take a checkpoint at the end of each epoch.
        each_evaluation: take a checkpoint after each evaluation.
    """

    def __init__(self, policy: CheckpointPolicy | None) -> None:
        self._every_steps = policy.every_steps if policy is not None else None
        self.each_epoch = policy is not None and policy.each_epoch
        self.each_evaluation = policy is not None and policy.each_evaluation

    def is_due_after(self, step: int) -> bool:
        """Return whether the state after this training step becomes a checkpoint."""
        return self._every_steps is not None and step % self._every_steps == 0
