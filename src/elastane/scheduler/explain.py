"""From a plan's reasons to sentences: why a job has its size, what it waits for, what would change that."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import assert_never

from elastane.api.plans import (
    AtMaximum,
    AwaitsArrival,
    AwaitsRepair,
    Because,
    BudgetAllows,
    BudgetSpent,
    CapacityGone,
    Cause,
    CoolingDown,
    Decision,
    DidNotArrive,
    DidNotReturn,
    Drains,
    Ends,
    GivesWay,
    MinimumFits,
    NeverFits,
    NodesLeave,
    NoRoom,
    NoSuchPool,
    NotWorth,
    OwnDrain,
    PoolChanged,
    QuotaReached,
    Reserved,
    ResizeTooDear,
    RetryLater,
    SizeNotLegal,
    StoppedOften,
    Suspended,
    TargetMet,
    Why,
    WorthMore,
)
from elastane.api.pools import Departure

BECAUSE: dict[Because, str] = {
    "owner": "whose team or cohort owns them; they were borrowed",
    "minimum": "which waits for its minimum",
    "priority": "which has the higher priority",
    "deadline": "which would miss its deadline",
    "fairness": "whose team has the smaller share of what is idle",
    "goodput": "to which they are worth more",
}
ENDS: dict[Cause, str] = {
    "cancelled": "It was cancelled.",
    "target": "Its loss has reached its target.",
    "time": "It has run for as long as activeDeadlineSeconds allows.",
}
DEPARTS = {"drain": "is drained", "failed": "has failed"}
NODES_TOLD = 3
SOMEBODY = "a job of another team"
TIMEOUTS: dict[type[Why], str] = {
    DidNotArrive: "scalingTimeoutInSeconds",
    DidNotReturn: "faultyScaleDownTimeoutInSeconds",
}


def explain(decision: Decision, teams: Mapping[str, str]) -> tuple[str, ...]:
    """Sentences about one decision: what happens, why, why not more, and what would change it.

    They are for everybody who may see the job, so they name no job of another team.

    Args:
        decision: of a plan.
        teams: of each job that was planned, its team.
    """
    called = partial(_called, decision.job, teams)
    found = [_headline(decision), *(sentence(why, called) for why in decision.why)]
    ceiling = decision.ceiling
    if ceiling is not None and ceiling not in decision.why:
        found.append("It is not larger: " + _lowered(sentence(ceiling, called)))
    changes = (remedy(why) for why in (*decision.why, *(() if ceiling is None else (ceiling,))))
    return (*found, *dict.fromkeys(change for change in changes if change))


def _called(reader: str, teams: Mapping[str, str], job: str) -> str:
    """What a job is called before those who read about ``reader``."""
    return job if teams[job] == teams[reader] else SOMEBODY


def _headline(decision: Decision) -> str:
    size = sum(decision.workers.values())
    where = ", ".join(f"{_count(count, 'worker')} in {pool}" for pool, count in decision.workers.items())
    heading = f", on its way to {decision.entitled}" if decision.entitled > size else ""
    match decision.action:
        case "start":
            return f"{decision.job} starts with {where}{heading}."
        case "grow":
            return f"{decision.job} grows to {where}{heading}."
        case "shrink":
            return f"{decision.job} shrinks to {where}{heading}."
        case "move":
            return f"{decision.job} moves to {where}{heading}."
        case "keep":
            return f"{decision.job} keeps {where}{heading}."
        case "preempt":
            gone = _count(sum(decision.drain.values()), "worker")
            place = "" if decision.asked_for else " and waits in its old place"
            return f"{decision.job} gives back its {gone}{place}."
        case "wait":
            return f"{decision.job} waits."


def sentence(  # noqa: C901, PLR0912 - a table with one row per reason
    why: Why, called: Callable[[str], str]
) -> str:
    """One reason as one sentence.

    Args:
        why: the reason.
        called: another job, as whoever reads the sentence may hear of it.
    """
    match why:
        case MinimumFits(node=node):
            return f"Its minimum fits on {_quota(node)}."
        case WorthMore(node=node, speedup=speedup):
            return f"Devices on {_quota(node)} are idle and make it {speedup:.2f} times as fast."
        case GivesWay(job=job, pool=pool, devices=devices, because=because):
            taken = f"{_count(devices, 'device')} of {pool} {_go(devices)}"
            return f"{taken} to {called(job)}, {BECAUSE[because]}."
        case NodesLeave(pool=pool, workers=workers):
            return f"{_count(workers, 'worker')} of it {_are(workers)} on nodes of {pool} that go away."
        case PoolChanged(pool=pool, workers=workers):
            there = f"{_count(workers, 'worker')} of it {_are(workers)} in {pool}"
            return f"{there}, which was removed or no longer has what one of them asks for."
        case CapacityGone(pool=pool, devices=devices, nodes=nodes):
            fewer = f"{pool} has {_count(devices, 'device')} fewer than jobs were granted there"
            return f"{fewer}: {_departures(nodes)}." if nodes else f"{fewer}."
        case Reserved(reservation=name, pool=pool, devices=devices, at_s=at_s):
            wanted = _count(devices, "device")
            return f"From {_time(at_s)} on {wanted} of {pool} belong to the reservation {name}."
        case QuotaReached(node="", pool=pool, limit=limit):
            return f"All who borrow {pool} may use at most {_count(limit, 'device')} of it together."
        case QuotaReached(node=node, pool=pool, limit=limit):
            return (
                f"{_owner(node)} may use at most {_count(limit, 'device')} of {pool}, borrowed ones included."
            )
        case DidNotArrive(workers=workers):
            return f"{_count(workers, 'worker')} that it was granted did not arrive in time."
        case DidNotReturn(workers=workers):
            return f"{_count(workers, 'worker')} of it failed and did not come back in time."
        case SizeNotLegal(workers=workers):
            return f"Its elastic policy does not allow {_count(workers, 'worker')}."
        case Suspended():
            return "It is paused."
        case Ends(cause=cause):
            return ENDS[cause]
        case RetryLater(at_s=at_s):
            return f"It crashed and is tried again at {_time(at_s)}."
        case BudgetSpent(spent=spent, budget=budget):
            return f"It has cost {cost_text(spent)} of its budget of {cost_text(budget)}."
        case NoSuchPool():
            return "No pool has what one of its workers asks for."
        case NeverFits(need=need, most=most):
            alone = f"{most} if nobody else had any" if most else "none, even if nobody else had any"
            return f"Its minimum needs {_count(need, 'device')}; it could have {alone}."
        case NoRoom(pool=pool, need=need, room=room, node=node, held_for=held_for):
            bound = "" if node is None else f" ({_quota(node)} is the limit)"
            holder = f"; {called(held_for)}, which has waited for long, holds its place" if held_for else ""
            left = f"{room} {_are(room)}" if room else "none is"
            return f"It needs {_count(need, 'device')} of {pool}, and {left} left for it{bound}{holder}."
        case Drains(pool=pool, devices=devices):
            return (
                f"{_count(devices, 'device')} of {pool} are its own as soon as those who have them have left."
            )
        case OwnDrain(workers=workers):
            return f"{_count(workers, 'worker')} of its own {_are(workers)} still leaving."
        case AwaitsRepair(until_s=until_s):
            return f"Part of it has failed; it waits until {_time(until_s)} for that to come back."
        case AwaitsArrival(workers=workers, until_s=until_s):
            count, verb = _count(workers, "worker"), "has" if workers == 1 else "have"
            return f"{count} of it {verb} not arrived yet; it waits for that until {_time(until_s)}."
        case AtMaximum(workers=workers):
            return f"Its elastic policy allows no more than {_count(workers, 'worker')}."
        case NotWorth(workers=workers, efficiency=efficiency):
            return f"At {workers} workers each more would add {efficiency:.0%} of what the first one gives."
        case ResizeTooDear(cost_s=cost_s, horizon_s=horizon_s):
            return f"No size in reach earns back a resize of {cost_s:g} s within {horizon_s:g} s."
        case CoolingDown(until_s=until_s):
            return f"It was resized a moment ago and rests until {_time(until_s)}."
        case StoppedOften(until_s=until_s):
            return (
                "It was stopped a moment ago, and has had to give something back more than once within an "
                f"hour: it rests until {_time(until_s)}."
            )
        case TargetMet(workers=workers, throughput=throughput):
            return (
                f"{_count(workers, 'worker')} {_are(workers)} enough for {throughput:g} samples per second, "
                "within a tenth."
            )
        case BudgetAllows(workers=workers, left=left):
            return (
                f"What is left of its budget, {cost_text(left)}, would not surely last with more than "
                f"{_count(workers, 'worker')}."
            )
        case _:
            assert_never(why)


def remedy(why: Why) -> str:
    """What somebody could do about it, or when it changes by itself; empty if neither can be said."""
    match why:
        case NoRoom(pool=pool, need=need, room=room, node=None):
            missing = math.ceil(need - room)
            comes = "comes" if missing == 1 else "come"
            return f"It changes when {_count(missing, 'device')} more of {pool} {comes} free."
        case NoRoom(pool=pool, node=node) | QuotaReached(node=str() as node, pool=pool):
            owner = _owner(node) if node else "the cluster"
            return f"It changes with more quota of {pool} for {owner}, or when jobs there end."
        case NeverFits(most=most):
            smaller = f"a minimum of at most {_count(most, 'device')}, or " if most else ""
            return f"It changes with {smaller}more quota or devices."
        case NoSuchPool():
            return "It changes with other resourcesPerWorker or data, with spot, or with a new pool."
        case AtMaximum():
            return "It changes with a higher maxReplicas: `elastane scale` of a job, --workers of a run."
        case Suspended():
            return "It changes with `elastane resume`."
        case BudgetSpent() | BudgetAllows():
            return "It changes with a higher budget: `elastane amend --budget`."
        case TargetMet():
            return "It changes with a higher target: `elastane amend --throughput`."
        case DidNotArrive() | DidNotReturn():
            return f"It is tried again; if workers need longer, raise {TIMEOUTS[type(why)]}."
        case _:
            return ""


def cost_text(cost: float) -> str:
    """Money: with two decimals, and of little with as many as it takes not to be nothing."""
    return f"{cost:.2g}" if 0 < cost < 0.01 else f"{cost:.2f}"  # noqa: PLR2004 - what two decimals can show


def _departures(nodes: Sequence[Departure]) -> str:
    """Who leaves, and what was said about it."""
    told = [
        f"node {one.node} {DEPARTS[one.how]}" + (f" ({one.why})" if one.why else "")
        for one in nodes[:NODES_TOLD]
    ]
    return ", ".join(told) + (f", and {len(nodes) - NODES_TOLD} more" if len(nodes) > NODES_TOLD else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _go(number: int) -> str:
    return "goes" if number == 1 else "go"


def _quota(node: str | None) -> str:
    return f"the quota of {node}" if node else "what the cluster lends"


def _owner(node: str) -> str:
    return node or "The cluster"


def _lowered(text: str) -> str:
    first = text.split(" ", 1)[0]
    return (
        text[0].lower() + text[1:] if first in {"It", "Its", "No", "At", "What", "Part", "Devices"} else text
    )


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
