"""Reasons as sentences for a run that nobody submitted to a cluster.

Its own controller has one pool, this machine, and no teams, quotas or other jobs. The words are those of
`elastane run`.
"""

from collections.abc import Mapping

from elastane.api.plans import (
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
from elastane.scheduler.explain import HEADS, are, count, lowered, remedy, sentence

HERE = "this machine"


def explain_run(decision: Decision, teams: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG001 - there is one
    """Sentences about one decision, as `elastane.scheduler.explain.explain` makes them of a cluster's job.

    Args:
        decision: of a plan.
        teams: of each job that was planned; there is one team.
    """
    ceiling = decision.ceiling
    found = [_headline(decision), *(_sentence(why) for why in decision.why)]
    if ceiling is not None and ceiling not in decision.why:
        found.append("It is not larger: " + lowered(_sentence(ceiling)))
    changes = (_remedy(why) for why in (*decision.why, *(() if ceiling is None else (ceiling,))))
    return (*found, *dict.fromkeys(change for change in changes if change))


def _headline(decision: Decision) -> str:
    size = sum(decision.workers.values())
    heading = f", on its way to {decision.entitled}" if decision.entitled > size else ""
    match decision.action:
        case "wait":
            return f"{decision.job} waits."
        case "preempt":
            return f"{decision.job} gives back its {count(sum(decision.drain.values()), 'worker')}."
        case action:
            return f"{decision.job} {HEADS[action]} {count(size, 'worker')} on {HERE}{heading}."


def _sentence(why: Why) -> str:
    match why:
        case MinimumFits():
            return f"Its smallest size fits on {HERE}."
        case WorthMore(speedup=speedup):
            return f"Devices of {HERE} are idle and make it {speedup:.2f} times as fast."
        case NoRoom(need=need, room=room):
            left = f"{room} {are(room)}" if room else "none is"
            return f"It needs {count(need, 'device')} more, and {left} left on {HERE}."
        case NeverFits(need=need, most=most):
            return f"Its smallest size needs {count(need, 'device')}; {HERE} has {most}."
        case NoSuchPool() | PoolChanged():
            return f"{HERE.capitalize()} no longer has what one of its workers needs."
        case CapacityGone(devices=devices):
            return f"{HERE.capitalize()} has {count(devices, 'device')} fewer than it was given."
        case Drains(devices=devices):
            return (
                f"{count(devices, 'device')} {are(devices)} its own as soon as the workers there have left."
            )
        case AtMaximum(workers=workers):
            return f"It was started with at most {count(workers, 'worker')}."
        case _:
            return sentence(why, str)


def _remedy(why: Why) -> str:
    match why:
        case NoRoom() | NeverFits() | NoSuchPool() | PoolChanged() | CapacityGone():
            return ""
        case AtMaximum():
            return "It changes with a higher MAX: `elastane run --workers MIN:MAX`."
        case _:
            return remedy(why)
