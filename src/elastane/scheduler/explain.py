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
    OwnedByOthers,
    PoolChanged,
    Protected,
    QuotaReached,
    Reserved,
    ResizeTooDear,
    Restricted,
    RetryLater,
    SizeNotLegal,
    StoppedOften,
    Suspended,
    TargetMet,
    Why,
    WorthMore,
)
from elastane.api.pools import Departure, Restriction

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
HEADS = {
    "start": "starts with",
    "grow": "grows to",
    "shrink": "shrinks to",
    "move": "moves to",
    "keep": "keeps",
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
        found.append("It is not larger: " + lowered(sentence(ceiling, called)))
    changes = (remedy(why) for why in (*decision.why, *(() if ceiling is None else (ceiling,))))
    return (*found, *dict.fromkeys(change for change in changes if change))


def _called(reader: str, teams: Mapping[str, str], job: str) -> str:
    """What a job is called before those who read about ``reader``."""
    return job if teams[job] == teams[reader] else SOMEBODY


def _headline(decision: Decision) -> str:
    size = sum(decision.workers.values())
    where = ", ".join(f"{count(n, 'worker')} in {pool}" for pool, n in decision.workers.items())
    heading = f", on its way to {decision.entitled}" if decision.entitled > size else ""
    match decision.action:
        case "preempt":
            gone = count(sum(decision.drain.values()), "worker")
            place = "" if decision.asked_for else " and waits in its old place"
            return f"{decision.job} gives back its {gone}{place}."
        case "wait":
            return f"{decision.job} waits."
        case action:
            return f"{decision.job} {HEADS[action]} {where}{heading}."


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
            taken = f"{count(devices, 'device')} of {pool} {_go(devices)}"
            return f"{taken} to {called(job)}, {BECAUSE[because]}."
        case NodesLeave(pool=pool, workers=workers):
            return f"{count(workers, 'worker')} of it {are(workers)} on nodes of {pool} that go away."
        case PoolChanged(pool=pool, workers=workers):
            there = f"{count(workers, 'worker')} of it {are(workers)} in {pool}"
            return f"{there}, which was removed or no longer has what one of them asks for."
        case CapacityGone(pool=pool, devices=devices, nodes=nodes, restriction=restriction):
            fewer = f"{pool} has {count(devices, 'device')} fewer than jobs were granted there"
            causes = [_departures(nodes)] if nodes else []
            causes += [] if restriction is None else [_restriction(restriction)]
            return f"{fewer}: {', and '.join(causes)}." if causes else f"{fewer}."
        case Reserved(reservation=name, pool=pool, devices=devices, at_s=at_s):
            wanted = count(devices, "device")
            return f"From {_time(at_s)} on {wanted} of {pool} belong to the reservation {name}."
        case QuotaReached(node="", pool=pool, limit=limit):
            return f"All who borrow {pool} may use at most {count(limit, 'device')} of it together."
        case QuotaReached(node=node, pool=pool, limit=limit):
            return (
                f"{_owner(node)} may use at most {count(limit, 'device')} of {pool}, borrowed ones included."
            )
        case DidNotArrive(workers=workers):
            return f"{count(workers, 'worker')} that it was granted did not arrive in time."
        case DidNotReturn(workers=workers):
            return f"{count(workers, 'worker')} of it failed and did not come back in time."
        case SizeNotLegal(workers=workers):
            return f"Its elastic policy does not allow {count(workers, 'worker')}."
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
            return f"Its minimum needs {count(need, 'device')}; it could have {alone}."
        case NoRoom(pool=pool, need=need, room=room, node=node, held_for=held_for):
            bound = "" if node is None else f" ({_quota(node)} is the limit)"
            holder = f"; {called(held_for)}, which has waited for long, holds its place" if held_for else ""
            left = f"{room} {are(room)}" if room else "none is"
            return f"It needs {count(need, 'device')} of {pool}, and {left} left for it{bound}{holder}."
        case Restricted() | Protected() | OwnedByOthers():
            return _of_others(why, called)
        case Drains(pool=pool, devices=devices):
            return (
                f"{count(devices, 'device')} of {pool} are its own as soon as those who have them have left."
            )
        case OwnDrain(workers=workers):
            return f"{count(workers, 'worker')} of its own {are(workers)} still leaving."
        case AwaitsRepair(until_s=until_s):
            return f"Part of it has failed; it waits until {_time(until_s)} for that to come back."
        case AwaitsArrival(workers=workers, until_s=until_s):
            number, verb = count(workers, "worker"), "has" if workers == 1 else "have"
            return f"{number} of it {verb} not arrived yet; it waits for that until {_time(until_s)}."
        case AtMaximum(workers=workers):
            return f"Its elastic policy allows no more than {count(workers, 'worker')}."
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
                f"{count(workers, 'worker')} {are(workers)} enough for {throughput:g} samples per second, "
                "within a tenth."
            )
        case BudgetAllows(workers=workers, left=left):
            return (
                f"What is left of its budget, {cost_text(left)}, would not surely last with more than "
                f"{count(workers, 'worker')}."
            )
        case _:
            assert_never(why)


def _of_others(why: Restricted | Protected | OwnedByOthers, called: Callable[[str], str]) -> str:
    """A sentence about what keeps a job from what is there, or from what others have."""
    match why:
        case Restricted(restriction=restriction):
            text = _restriction(restriction)
        case Protected(job=job, by=by, pool=pool, devices=devices, until_s=until_s):
            text = f"{called(job)} was started a moment ago and is protected until {_time(until_s)}"
            text += f"; then {by} may take {count(devices, 'device')} of {pool} from it"
            if called(job) != SOMEBODY:
                return f"{text}."
        case OwnedByOthers(pool=pool, devices=devices):
            text = (
                f"{count(devices, 'device')} of {pool} {are(devices)} used by jobs of a lower priority whose "
            )
            text += "teams or cohorts own them: a priority takes nothing from another owner"
    return f"{text[0].upper()}{text[1:]}."


def remedy(why: Why) -> str:  # noqa: C901 - a table with one row per reason
    """What somebody could do about it, or when it changes by itself; empty if neither can be said."""
    match why:
        case NoRoom(pool=pool, need=need, room=room, node=None):
            missing = math.ceil(need - room)
            comes = "comes" if missing == 1 else "come"
            return f"It changes when {count(missing, 'device')} more of {pool} {comes} free."
        case NoRoom(pool=pool, node=node) | QuotaReached(node=str() as node, pool=pool):
            owner = _owner(node) if node else "the cluster"
            return f"It changes with more quota of {pool} for {owner}, or when jobs there end."
        case NeverFits(most=most):
            smaller = f"a minimum of at most {count(most, 'device')}, or " if most else ""
            return f"It changes with {smaller}more quota or devices."
        case NoSuchPool():
            return "It changes with other resourcesPerWorker or data, with spot, or with a new pool."
        case AtMaximum():
            return "It changes with a higher maxReplicas: `elastane scale` of a job, --workers of a run."
        case Suspended():
            return "It changes with `elastane resume`."
        case OwnedByOthers(pool=pool):
            return (
                f"It changes with a quota of {pool} for its own team, or when the others lend what they own."
            )
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


def _restriction(one: Restriction) -> str:
    """What leaves how much, for the middle of a sentence."""
    who = f"the trigger {one.trigger} ({one.why})" if one.trigger else "the capacity that was reported"
    return f"{who} leaves jobs {count(one.limit, 'device')} of {one.pool}"


def _departures(nodes: Sequence[Departure]) -> str:
    """Who leaves, and what was said about it."""
    told = [
        f"node {one.node} {DEPARTS[one.how]}" + (f" ({one.why})" if one.why else "")
        for one in nodes[:NODES_TOLD]
    ]
    return ", ".join(told) + (f", and {len(nodes) - NODES_TOLD} more" if len(nodes) > NODES_TOLD else "")


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def are(number: int) -> str:
    return "is" if number == 1 else "are"


def _go(number: int) -> str:
    return "goes" if number == 1 else "go"


def _quota(node: str | None) -> str:
    return f"the quota of {node}" if node else "what the cluster lends"


def _owner(node: str) -> str:
    return node or "The cluster"


def lowered(text: str) -> str:
    first = text.split(" ", 1)[0]
    return (
        text[0].lower() + text[1:] if first in {"It", "Its", "No", "At", "What", "Part", "Devices"} else text
    )


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
