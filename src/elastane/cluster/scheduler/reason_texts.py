"""The text of each reason, as a clause without a capital letter and a full stop.

No clause begins with the name of a job or a pool, so that its first letter may be made a capital.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias, assert_never

from elastane.cluster.nouns.plans import (
    AtLargestUsefulSize,
    AtMaximum,
    AwaitsArrival,
    AwaitsRepair,
    Because,
    BudgetAllows,
    BudgetSpent,
    CapacityGone,
    Cause,
    CeilingReason,
    CheaperElsewhere,
    CoolingDown,
    DidNotArrive,
    DidNotReturn,
    Drains,
    Ends,
    GainReason,
    GivesWay,
    LossReason,
    MeasuredSlower,
    MinimumFits,
    NeverFits,
    NodesLeave,
    NoRoom,
    NoSuchPool,
    NotMeasured,
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
    StandstillReason,
    StoppedOften,
    Suspended,
    TargetMet,
    WaitReason,
    Why,
    WorthMore,
)
from elastane.cluster.nouns.pools import Departure, Restriction
from elastane.cluster.scheduler.wording import choose_is_or_are, format_count, format_money, format_time

NameJob: TypeAlias = Callable[[str], str]
"""Returns the name of a job for the readers of a text."""

WINNERS: dict[Because, str] = {
    "owner": "which takes back what its team or cohort owns",
    "minimum": "which waits for its minimum",
    "priority": "which has the higher priority",
    "deadline": "which would otherwise miss its deadline",
    "fairness": "because its team has borrowed less",
    "goodput": "which gains more speed",
}
ENDS: dict[Cause, str] = {
    "cancelled": "it was cancelled",
    "target": "its loss has reached its target",
    "time": "it has run for as long as activeDeadlineSeconds allows",
}
DEPARTURES = {"drain": "is drained", "failed": "has failed"}
MAX_NAMED_NODES = 3


def describe_reason(why: Why, name_job: NameJob) -> str:
    """Return the text of a reason; ``name_job`` names other jobs for its readers."""
    if isinstance(why, GainReason):
        return _describe_gain(why)
    if isinstance(why, LossReason):
        return _describe_loss_reason(why, name_job)
    if isinstance(why, StandstillReason):
        return _describe_standstill(why)
    if isinstance(why, WaitReason):
        return _describe_wait(why, name_job)
    if isinstance(why, CeilingReason):
        return _describe_ceiling(why)
    assert_never(why)


def _describe_gain(why: GainReason) -> str:
    match why:
        case MinimumFits(node=node):
            return f"its minimum fits on {_describe_quota(node)}"
        case WorthMore(node=node, speedup=speedup):
            where = f"on the quota of {node}" if node else "that the cluster lends"
            return f"idle devices {where} make it {speedup:.2f} times as fast"
        case _:
            assert_never(why)


def _describe_loss_reason(why: LossReason, name_job: NameJob) -> str:
    match why:
        case GivesWay(job=job, pool=pool, devices=devices, because=because, team=team, owned=owned):
            go = "goes" if devices == 1 else "go"
            own = f"; the quota of {team} there is {owned} now" if team else ""
            what = f"{format_count(devices, 'device')} of {pool}"
            return f"{what} {go} to {name_job(job)}, {WINNERS[because]}{own}"
        case NodesLeave(pool=pool, workers=workers):
            return f"{_count_own(workers)} on nodes of {pool} that are leaving"
        case PoolChanged(pool=pool, workers=workers):
            return (
                f"{_count_own(workers)} in {pool}, which was removed or no longer has what its workers need"
            )
        case CapacityGone(pool=pool, devices=devices, nodes=nodes, restriction=restriction):
            causes = [_describe_departures(nodes)] if nodes else []
            causes += [] if restriction is None else [_describe_restriction(restriction)]
            fewer = f"there {choose_is_or_are(devices)} {format_count(devices, 'fewer device')}"
            return f"{fewer} in {pool} than jobs were granted" + (
                f": {', and '.join(causes)}" if causes else ""
            )
        case Reserved(reservation=name, pool=pool, devices=devices, at_s=at_s):
            wanted, verb = (
                f"{format_count(devices, 'device')} of {pool}",
                "belongs" if devices == 1 else "belong",
            )
            return f"from {format_time(at_s)} on, {wanted} {verb} to the reservation {name}"
        case QuotaReached(node=node, pool=pool, limit=limit):
            most = f"at most {format_count(limit, 'device')} of {pool} may be used"
            return (
                f"{most} by {node}, borrowed ones included" if node else f"{most} by all borrowers together"
            )
        case DidNotArrive(workers=workers):
            return f"{format_count(workers, 'worker')} that it was granted did not arrive in time"
        case DidNotReturn(workers=workers):
            return f"{workers} of its workers failed and did not come back in time"
        case CheaperElsewhere(pool=pool, target=target, saved=saved, cost=cost):
            there, here = format_money(why.target_price), format_money(why.price)
            return (
                f"a device costs {there} an hour in {target} and {here} in {pool}, so one of its workers "
                f"moves there: in {why.horizon_s:.0f} s that saves {format_money(saved)}, more than the "
                f"{format_money(cost)} that the move costs"
            )
        case SizeNotLegal(workers=workers):
            return f"its elastic policy does not allow {format_count(workers, 'worker')}"
        case _:
            assert_never(why)


def _describe_standstill(why: StandstillReason) -> str:
    match why:
        case Suspended():
            return "it is paused"
        case Ends(cause=cause):
            return ENDS[cause]
        case RetryLater(at_s=at_s):
            return f"it crashed and is retried at {format_time(at_s)}"
        case BudgetSpent(spent=spent, budget=budget):
            return f"it has spent {format_money(spent)} of its budget of {format_money(budget)}"
        case NoSuchPool(image=image) if image:
            return (
                "of the pools that have what one of its workers asks for, none belongs to an engine that can "
                f"run its image {image}"
            )
        case NoSuchPool(allowed=allowed) if allowed:
            return (
                f"the data of its team must not leave {', '.join(allowed)}, and no pool there has what one "
                "of its workers asks for"
            )
        case NoSuchPool(sites=sites) if sites:
            if len(sites) == 1:
                return f"at site {sites[0]}, no pool of an engine has what one of its workers asks for"
            return (
                f"the sites {', '.join(sites)} do not all have pools that its workers can share: of one "
                "device kind, and of engines that all share the home of the controller, or all with home=own"
            )
        case NoSuchPool(one_machine=one_machine):
            if not one_machine:
                return "no pool has what one of its workers asks for"
            return (
                "no pool of the controller's machine has what one of its workers asks for, and all of its "
                "workers must be on one machine (in a pool of an engine: a fixed number of them, up to the "
                "workersPerAgent of the pool)"
            )
        case NeverFits(need=need, most=most):
            alone = f"only {most}" if most else "none"
            return (
                f"its minimum needs {format_count(need, 'device')}; it could get {alone} "
                "even without any other job"
            )
        case StoppedOften(until_s=until_s):
            return (
                "it was stopped a moment ago, and had to give workers back more than once within an hour: it "
                f"waits until {format_time(until_s)}"
            )
        case _:
            assert_never(why)


def _describe_wait(why: WaitReason, name_job: NameJob) -> str:
    match why:
        case NoRoom(pool=pool, need=need, room=room, node=node, held_for=held_for):
            left = f"{room} {choose_is_or_are(room)}" if room else "none is"
            bound = "" if node is None else f" (limited by {_describe_quota(node)})"
            holder = (
                f"; {name_job(held_for)} has waited for a long time and holds its place" if held_for else ""
            )
            return f"it needs {format_count(need, 'device')} of {pool}, and {left} left for it{bound}{holder}"
        case Restricted(restriction=restriction):
            return _describe_restriction(restriction)
        case Protected(job=job, by=by, pool=pool, devices=devices, until_s=until_s):
            return (
                f"until {format_time(until_s)} {name_job(job)} is protected, because it was started a moment "
                f"ago; then {by} may take {format_count(devices, 'device')} of {pool} from it"
            )
        case OwnedByOthers(pool=pool, devices=devices):
            return (
                f"jobs of a lower priority use {format_count(devices, 'device')} of {pool} that their own "
                "teams or cohorts own: a higher priority takes nothing from another owner"
            )
        case Drains(pool=pool, devices=devices):
            return (
                f"it gets {format_count(devices, 'device')} of {pool} as soon as the workers there have left"
            )
        case OwnDrain(workers=workers):
            return f"{_count_own(workers)} still leaving"
        case AwaitsRepair(until_s=until_s):
            return f"some of its workers have failed; it waits for them until {format_time(until_s)}"
        case AwaitsArrival(workers=workers, until_s=until_s):
            has = "has" if workers == 1 else "have"
            return (
                f"{workers} of its workers {has} not arrived yet; it waits for them until "
                f"{format_time(until_s)}"
            )
        case _:
            assert_never(why)


def _describe_ceiling(why: CeilingReason) -> str:
    match why:
        case AtMaximum(workers=workers):
            return f"its elastic policy allows no more than {format_count(workers, 'worker')}"
        case AtLargestUsefulSize(workers=workers, most=most):
            return (
                f"of the sizes up to {most}, {workers} is the largest that fills whole nodes and shares its "
                "virtual ranks evenly"
            )
        case NotWorth() | NotMeasured() | MeasuredSlower():
            return _describe_speed(why)
        case ResizeTooDear(cost_s=cost_s, horizon_s=horizon_s):
            return f"a resize costs {cost_s:g} s, and no larger size earns that back within {horizon_s:g} s"
        case CoolingDown(until_s=until_s):
            return f"it was resized a moment ago and does not grow before {format_time(until_s)}"
        case TargetMet(workers=workers, throughput=throughput):
            enough = f"{format_count(workers, 'worker')} {choose_is_or_are(workers)} enough"
            return f"{enough} for {throughput:g} samples per second, within a tenth"
        case BudgetAllows(workers=workers, left=left):
            return (
                f"the rest of its budget, {format_money(left)}, might not last with more than "
                f"{format_count(workers, 'worker')}"
            )
        case _:
            assert_never(why)


def _describe_speed(why: NotWorth | NotMeasured | MeasuredSlower) -> str:
    match why:
        case NotWorth(workers=workers, efficiency=efficiency) if efficiency <= 0:
            return f"it would be no faster with {workers} workers"
        case NotWorth(workers=workers, efficiency=efficiency):
            return (
                f"at {workers} workers, each additional one would add {efficiency:.0%} of one worker's speed"
            )
        case NotMeasured(workers=workers, measured=0):
            return f"its speed was not measured yet, so it has at most {format_count(workers, 'worker')}"
        case NotMeasured(workers=workers, measured=measured):
            return (
                f"its speed was measured with up to {format_count(measured, 'worker')}; that does not show "
                f"its speed with more than {workers}"
            )
        case MeasuredSlower(workers=workers):
            return f"with {workers} workers it was measured, and was no faster than with fewer"
        case _:
            assert_never(why)


def _count_own(workers: int) -> str:
    return f"{workers} of its workers {choose_is_or_are(workers)}"


def _describe_restriction(restriction: Restriction) -> str:
    by = (
        f"the trigger {restriction.trigger} ({restriction.why})"
        if restriction.trigger
        else "the reported capacity"
    )
    return f"{by} leaves jobs {format_count(restriction.limit, 'device')} of {restriction.pool}"


def _describe_departures(nodes: Sequence[Departure]) -> str:
    """Return which nodes leave, and why."""
    named = [
        f"node {departure.node} {DEPARTURES[departure.how]}"
        + (f" ({departure.why})" if departure.why else "")
        for departure in nodes[:MAX_NAMED_NODES]
    ]
    more = len(nodes) - len(named)
    return ", ".join(named) + (f", and {more} more" if more else "")


def _describe_quota(node: str) -> str:
    return f"the quota of {node}" if node else "devices that the cluster lends"
