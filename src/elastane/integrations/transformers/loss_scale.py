"""The scale of a microbatch's loss, when a virtual rank computes another part of a step than a whole batch.

A Trainer adds up the losses of a step's batches. Most losses divide themselves: by the number of items in the
step, or by the number of its batches. Others are means over a batch, and a few have terms of both kinds.
"""

from fractions import Fraction

import msgspec


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
