"""Loss scaling for fp16: the user's own ``GradScaler``, updated by decisions that all workers share.

Each virtual rank computes the gradient of its loss times the scale, so the sum of gradients carries the scale
too. Votes carry the norms of the whole sums. From them all workers decide alike whether a sum overflowed.
"""

import math
from functools import partial
from typing import NoReturn

import msgspec
import torch
from torch.amp import GradScaler
from torch.optim import Optimizer

from elastane.common.errors import BadInput, RunFailed
from elastane.run.protocol.messages import RoundOutcome

CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_


def _refuse(method: str, *_args: object, **_options: object) -> NoReturn:
    raise BadInput(
        f"the script called scaler.{method}()",
        means="the run scales the loss, removes the scale from the sum of gradients, and updates the scale",
        do="write step.backward(loss) alone, without scaler.scale, unscale_, step and update",
    )


class LossScaling:
    """A scaler and its optimizer.

    Args:
        scaler: the user's scaler, enabled; its state contains the scale.
        optimizer: the user's optimizer.
        device: the device of the losses.
    """

    def __init__(self, scaler: GradScaler, optimizer: Optimizer, device: torch.device) -> None:
        self.scaler = scaler
        self._optimizer = optimizer
        # The scaler creates its tensors at the first loss. A worker without a loss in a step needs them too:
        # it updates the scale with the others.
        self._overflow = torch.zeros((), dtype=torch.float32, device=device)
        scaler.scale(self._overflow)
        # Only on this object: the run itself calls the methods of the class.
        for name in ("scale", "unscale_", "step", "update"):
            setattr(scaler, name, partial(_refuse, name))

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        return type(self.scaler).scale(self.scaler, loss)

    @property
    def inverse(self) -> float:
        """The factor that removes the scale from a gradient; exact if the scale is a power of two.

        It is rounded to fp32, as ``GradScaler.unscale_`` does.
        """
        return torch.tensor(1.0 / self.scaler.get_scale(), dtype=torch.float32).item()

    def update(self, *, overflowed: bool) -> None:
        """Move the scale as ``GradScaler.update`` does after a step.

        Args:
            overflowed: an element of the gradient was not finite, so the step was skipped.

        Raises:
            RunFailed: the scale has fallen to zero.
        """
        self._overflow.fill_(float(overflowed))
        # GradScaler.unscale_ would set this flag, but it sees the gradients of one worker only.
        state = self.scaler._per_optimizer_states[id(self._optimizer)]
        state["found_inf_per_device"] = {self._overflow.device: self._overflow.clone()}
        type(self.scaler).update(self.scaler)
        if not self.scaler.get_scale():
            raise RunFailed(
                "the gradient scale has fallen to zero",
                means="the gradients overflow at every scale, so every later step would be skipped",
                do="look for an infinite or undefined gradient, which no scale can correct",
            )


# The factor by which a committed step multiplies its summed gradient: averaging, unscaling and clipping.


class GradientScale(msgspec.Struct, frozen=True):
    """The scaling of a step's summed gradient.

    Args:
        factor: the factor of every gradient.
        norm: the norm of the whole gradient before clipping; None unless it is clipped.
        skipped: the scaled gradient overflowed, so the optimizer does not run.
    """

    factor: float
    norm: float | None
    skipped: bool


def compute_gradient_scale(
    outcome: RoundOutcome, *, scaling: LossScaling | None, largest_norm: float | None
) -> GradientScale:
    """Return the scaling of the step's gradient.

    Args:
        outcome: the outcome of the step, with the gradient's squared norm if clipping or scaling needs it.
        scaling: the scaling of the losses; None: losses are not scaled.
        largest_norm: the limit of clipping; None: the gradient is not clipped.
    """
    squared = outcome.norm_squared
    if scaling is not None and squared is not None and not math.isfinite(squared):
        # One element that is not finite makes the norm of the whole gradient not finite.
        return GradientScale(factor=1.0, norm=None, skipped=True)
    factor = 1.0 / outcome.weight if outcome.weighted and outcome.weight else 1.0
    if outcome.left_out:
        # All virtual ranks of such a round have as many samples, and those of absent sites have added none.
        left_out = sum(stop - start for start, stop in outcome.left_out)
        factor *= (outcome.filled + left_out) / outcome.filled
    if scaling is not None:
        factor *= scaling.inverse
    if largest_norm is None or squared is None:
        return GradientScale(factor=factor, norm=None, skipped=False)
    norm = math.sqrt(squared) * factor
    return GradientScale(
        factor=factor * min(1.0, largest_norm / (norm + CLIP_EPSILON)), norm=norm, skipped=False
    )
