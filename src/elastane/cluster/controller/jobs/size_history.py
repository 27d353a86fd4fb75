"""The history of a job's sizes, as far as the next plan needs it. Pure."""

import msgspec

from elastane.cluster.nouns.config import QUIET_S
from elastane.cluster.nouns.plans import (
    AtMaximum,
    BudgetAllows,
    BudgetSpent,
    CapacityGone,
    CheaperElsewhere,
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

AT_REST = ("keep", "wait")
SETBACKS = ("shrink", "move", "preempt")
WISHED = (AtMaximum, BudgetAllows, BudgetSpent, Ends, SizeNotLegal, Suspended, TargetMet)
"""Reasons of the user: pausing a job, or lowering its limits, target or budget, takes nothing from it."""

TAKEN = (CapacityGone, GivesWay, NodesLeave, PoolChanged, QuotaReached, Reserved)
"""Reasons outside of the job: other jobs with a better claim, or the operators of the cluster."""


class SizeHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The past sizes of a job. `elastane.cluster.nouns.cluster.JobState` describes the fields."""

    started_s: float | None = None
    resized_s: float | None = None
    setbacks: int = 0
    promised: int = 0


def record_decision(before: SizeHistory, decision: Decision, now_s: float) -> SizeHistory:
    setbacks = before.setbacks
    # To give way to another job costs no more than a resize, unless the job is stopped.
    harmless = WISHED if decision.action == "preempt" else (*WISHED, GivesWay, CheaperElsewhere)
    if decision.action in SETBACKS and not all(isinstance(why, harmless) for why in decision.why):
        is_first = before.resized_s is None or now_s >= before.resized_s + QUIET_S
        setbacks = 1 if is_first else setbacks + 1
    resized = decision.action not in (*AT_REST, "start")
    return SizeHistory(
        started_s=now_s if decision.action == "start" else before.started_s,
        resized_s=now_s if resized else before.resized_s,
        setbacks=setbacks,
        promised=decision.entitled,
    )


def is_preempted(decision: Decision) -> bool:
    """Return whether the job loses all workers to others. A spent budget, for example, is its own reason."""
    return decision.action == "preempt" and any(isinstance(why, TAKEN) for why in decision.why)


def is_stop(decision: Decision) -> bool:
    """Return whether the job gives back all workers for a reason of its own, such as a pause."""
    return decision.action == "preempt" and not is_preempted(decision)


def is_reclaimed(decision: Decision) -> bool:
    """Return whether devices are taken from the job for a reason outside of it."""
    return decision.action in SETBACKS and any(isinstance(why, TAKEN) for why in decision.why)
