"""What the controller remembers of a job's past sizes, because the next plan asks for it. Pure."""

import msgspec

from elastane.api.plans import (
    AtMaximum,
    BudgetAllows,
    BudgetSpent,
    CapacityGone,
    Decision,
    Ends,
    GivesWay,
    NodesLeave,
    PoolChanged,
    QuotaReached,
    Reserved,
    SizeNotLegal,
    Suspended,
    TargetMet,
)
from elastane.api.scheduling_rules import QUIET_S

AT_REST = ("keep", "wait")
SETBACKS = ("shrink", "move", "preempt")
WISHED = (AtMaximum, BudgetAllows, BudgetSpent, Ends, SizeNotLegal, Suspended, TargetMet)
"""Reasons that are a user's own: whoever pauses a job, or lowers its limits, target or budget, takes nothing
from it."""

TAKEN = (CapacityGone, GivesWay, NodesLeave, PoolChanged, QuotaReached, Reserved)
"""Reasons that lie with others: with jobs of a better right, or with whoever looks after the cluster."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A job's past, as `elastane.api.cluster.JobState` tells it; see there for the fields."""

    started_s: float | None = None
    resized_s: float | None = None
    setbacks: int = 0
    promised: int = 0


def standing_after(before: Standing, decision: Decision, now_s: float) -> Standing:
    """What is to be remembered once this has been decided."""
    setbacks = before.setbacks
    if decision.action in SETBACKS and not all(isinstance(why, WISHED) for why in decision.why):
        quiet = before.resized_s is None or now_s >= before.resized_s + QUIET_S
        setbacks = 1 if quiet else setbacks + 1
    resized = decision.action not in (*AT_REST, "start")
    return Standing(
        started_s=now_s if decision.action == "start" else before.started_s,
        resized_s=now_s if resized else before.resized_s,
        setbacks=setbacks,
        promised=decision.entitled,
    )


def stopped_for_others(decision: Decision) -> bool:
    """Whether a job loses all it has to others; a budget that is spent, say, is its own affair."""
    return decision.action == "preempt" and any(isinstance(why, TAKEN) for why in decision.why)
