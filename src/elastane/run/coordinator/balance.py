"""The decision to assign virtual ranks by speed: rare, and only for a difference that lasts.

Speeds are quantised in notches of ``2 ** 0.5`` between 1/16 and 4. The coordinator changes a generation for
speed alone if some member is more than one notch off the speed of its share in three evaluations in a row, at
least two seconds apart. So two workers of nearly equal speed never pass virtual ranks back and forth.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from statistics import median

import msgspec

from elastane.run.nouns.membership import Generation, Member, WorkerId

NOTCHES_PER_DOUBLING = 2
SLOWEST_NOTCH = -4 * NOTCHES_PER_DOUBLING
FASTEST_NOTCH = 2 * NOTCHES_PER_DOUBLING
TOLERATED_NOTCHES = 1
EVALUATIONS = 3
APART_S = 2.0


@dataclass(frozen=True, slots=True)
class Balance:
    """The evaluations so far.

    Args:
        streak: the number of evaluations in a row in which the shares did not fit the speeds.
        last_s: the time of the last evaluation, in seconds.
    """

    generation: int = 0
    streak: int = 0
    last_s: float = float("-inf")


def compute_notch(speed: float) -> int:
    """Return the nearest notch of a relative speed > 0."""
    return max(SLOWEST_NOTCH, min(FASTEST_NOTCH, round(NOTCHES_PER_DOUBLING * log2(speed))))


def measure_notches(compute_s: Mapping[WorkerId, float]) -> dict[WorkerId, int]:
    """Return the notch of every worker: the median of all seconds per virtual rank, divided by its own."""
    usual_s = median(compute_s.values())
    return {worker: compute_notch(usual_s / own_s) for worker, own_s in compute_s.items()}


def evaluate_balance(
    balance: Balance, generation: Generation, compute_s: Mapping[WorkerId, float], now: float
) -> tuple[Balance, tuple[Member, ...] | None]:
    """Evaluate once; return the members with new speeds if virtual ranks should be reassigned.

    Args:
        compute_s: the seconds per virtual rank of its members; 0 while unknown.
        now: the time in seconds, on the clock of ``balance``.
    """
    if balance.generation != generation.number:
        # The first evaluation waits too: medians still include steps of the previous generation.
        return Balance(generation.number, 0, now), None
    known = {worker: compute_s.get(worker, 0.0) for worker in generation.workers}
    if now - balance.last_s < APART_S or len(known) == 1 or min(known.values()) <= 0:
        return balance, None
    found = measure_notches(known)
    unfit = any(
        abs(found[member.worker] - compute_notch(member.speed)) > TOLERATED_NOTCHES
        for member in generation.members
    )
    streak = balance.streak + 1 if unfit else 0
    if streak < EVALUATIONS:
        return Balance(generation.number, streak, now), None
    members = tuple(
        msgspec.structs.replace(member, speed=2.0 ** (found[member.worker] / NOTCHES_PER_DOUBLING))
        for member in generation.members
    )
    return Balance(generation.number, 0, now), members
