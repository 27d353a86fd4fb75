"""The factor by which a committed step multiplies its summed gradient: averaging, unscaling and clipping."""

import math

import msgspec

from elastane.run.protocol.messages import RoundOutcome
from elastane.run.worker.state.loss_scaling import LossScaling

CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_


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
    if scaling is not None:
        factor *= scaling.inverse
    if largest_norm is None or squared is None:
        return GradientScale(factor=factor, norm=None, skipped=False)
    norm = math.sqrt(squared) * factor
    return GradientScale(
        factor=factor * min(1.0, largest_norm / (norm + CLIP_EPSILON)), norm=norm, skipped=False
    )
