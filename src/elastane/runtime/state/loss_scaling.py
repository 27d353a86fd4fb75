"""Loss scaling for fp16: the user's own ``GradScaler``, updated by decisions that all workers share.

Every virtual rank's gradient is that of its loss times the scale, and so is their sum. Votes carry the norms
of the whole sums, so that all workers know alike whether one of them overflowed.
"""

from functools import partial
from typing import NoReturn

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer

from elastane.api.errors import BadInput, RunFailed


def _refuse(method: str, *_args: object, **_options: object) -> NoReturn:
    raise BadInput(
        f"scaler.{method}() was called by the script",
        means="the run scales the loss, takes the scale out of the sum of gradients, and moves it",
        do="write step.backward(loss) alone, without scaler.scale, unscale_, step and update",
    )


class LossScaling:
    """A scaler and the optimizer it serves.

    Args:
        scaler: enabled; it stays the user's, and its state has the scale.
        optimizer: the user's.
        device: of the losses.
    """

    def __init__(self, scaler: GradScaler, optimizer: Optimizer, device: torch.device) -> None:
        self.scaler = scaler
        self._optimizer = optimizer
        # The scaler makes its tensors at the first loss; a worker without a loss in a step updates the scale
        # with the others.
        self._found = torch.zeros((), dtype=torch.float32, device=device)
        scaler.scale(self._found)
        # On this object only: the run calls the methods of its class.
        for name in ("scale", "unscale_", "step", "update"):
            setattr(scaler, name, partial(_refuse, name))

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        return type(self.scaler).scale(self.scaler, loss)

    @property
    def inverse(self) -> float:
        """The factor that removes the scale from a gradient; exact for powers of two.

        Rounded to fp32 as ``GradScaler.unscale_`` rounds it.
        """
        return torch.tensor(1.0 / self.scaler.get_scale(), dtype=torch.float32).item()

    def update(self, *, overflowed: bool) -> None:
        """Move the scale as ``GradScaler.update`` does after a step.

        Args:
            overflowed: some element of the gradient was not finite, so the step was skipped.

        Raises:
            RunFailed: no scale is small enough.
        """
        self._found.fill_(float(overflowed))
        # Where GradScaler.unscale_ leaves what it has found; here the gradients lie with all workers.
        found = self.scaler._per_optimizer_states[id(self._optimizer)]  # noqa: SLF001 - torch has no other way in
        found["found_inf_per_device"] = {self._found.device: self._found.clone()}
        type(self.scaler).update(self.scaler)
        if not self.scaler.get_scale():
            raise RunFailed(
                "the gradient scale has fallen to zero",
                means="the gradients overflow at every scale, so no step could be taken any more",
                do="look for an infinite or undefined gradient; a scale cannot mend that",
            )
