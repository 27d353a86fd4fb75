"""Sentences about the decisions of the controller inside `elastane run`, with one job and one pool.

The pool is this machine; there are no teams, quotas or other jobs. The words are those of `elastane run`.
"""

from collections.abc import Mapping

from elastane.cluster.nouns.plans import (
    AtLargestUsefulSize,
    AtMaximum,
    CapacityGone,
    Decision,
    Drains,
    MinimumFits,
    NeverFits,
    NoRoom,
    NoSuchPool,
    PoolChanged,
    Why,
    WorthMore,
)
from elastane.cluster.scheduler.explanations import ACTIONS, suggest_remedy, write_sentences
from elastane.cluster.scheduler.reason_texts import describe_reason
from elastane.cluster.scheduler.wording import choose_is_or_are, format_count

HERE = "this machine"


def explain_run_decision(
    decision: Decision,
    teams: Mapping[str, str],  # noqa: ARG001 - there is one
) -> tuple[str, ...]:
    """Return sentences about a decision, as `explain_decision` does for a cluster."""
    return write_sentences(_write_run_headline(decision), decision, _describe_here, _suggest_here)


def _write_run_headline(decision: Decision) -> str:
    size = sum(decision.workers.values())
    heading = f", on its way to {decision.entitled}" if decision.entitled > size else ""
    match decision.action:
        case "wait":
            return f"{decision.job} waits."
        case "preempt":
            return f"{decision.job} gives back its {format_count(sum(decision.drain.values()), 'worker')}."
        case action:
            return f"{decision.job} {ACTIONS[action]} {format_count(size, 'worker')} on {HERE}{heading}."


def _describe_here(why: Why) -> str:
    match why:
        case MinimumFits():
            return f"its smallest size fits on {HERE}"
        case WorthMore(speedup=speedup):
            return f"devices of {HERE} are idle and make it {speedup:.2f} times as fast"
        case NoRoom(need=need, room=room):
            left = f"{room} {choose_is_or_are(room)}" if room else "none is"
            return f"it needs {format_count(need, 'device')} more, and {left} left on {HERE}"
        case NeverFits(need=need, most=most):
            return f"its smallest size needs {format_count(need, 'device')}; {HERE} has {most}"
        case NoSuchPool() | PoolChanged():
            return f"{HERE} no longer has what one of its workers needs"
        case CapacityGone(devices=devices):
            return f"{HERE} has {format_count(devices, 'device')} fewer than it was given"
        case Drains(devices=devices):
            return f"it gets {format_count(devices, 'device')} as soon as the workers there have left"
        case AtMaximum(workers=workers):
            return f"it was started with at most {format_count(workers, 'worker')}"
        case _:
            return describe_reason(why, str)


def _suggest_here(why: Why) -> str:
    match why:
        case NoRoom() | NeverFits() | NoSuchPool() | PoolChanged() | CapacityGone() | AtLargestUsefulSize():
            return ""
        case AtMaximum():
            return "This changes with a higher MAX: `elastane run --workers MIN:MAX`."
        case _:
            return suggest_remedy(why)
