"""What the scheduler decides, each decision with its reasons as values.

Reasons are rendered by `elastane.scheduler.explain`. The field ``node`` names the cohort or team whose
quota is meant; empty: the cluster itself.
"""

from typing import Literal, TypeAlias

import msgspec

from elastane.api.pools import Departure, Restriction


class Reason(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, gc=False):
    """Base of every reason; the JSON key ``type`` names the class."""


# -- why a job got more ------------------------------------------------------------------------------------


class MinimumFits(Reason, frozen=True, kw_only=True, gc=False):
    """The job's minimum fits, on the quota of ``node``."""

    node: str


class WorthMore(Reason, frozen=True, kw_only=True, gc=False):
    """Idle devices, on the quota of ``node``, make the job ``speedup`` times as fast."""

    node: str
    speedup: float


# -- why a job gives something back ------------------------------------------------------------------------

Because: TypeAlias = Literal["owner", "minimum", "priority", "deadline", "fairness", "goodput"]


class GivesWay(Reason, frozen=True, kw_only=True, gc=False):
    """``devices`` of the pool go to another job that has the better right to them.

    Args:
        job: that other job.
        pool: whose devices.
        devices: how many.
        because: ``owner``: they are the quota of the other's team or cohort, and were borrowed; ``minimum``:
            the other waits for its minimum, and this one has more than its own or the lower priority;
            ``priority``: the other has the higher one; ``deadline``: the other is late; ``fairness``: the
            other's team has the smaller dominant share; ``goodput``: they are worth more there.
    """

    job: str
    pool: str
    devices: int
    because: Because


class NodesLeave(Reason, frozen=True, kw_only=True, gc=False):
    """``workers`` of the job are on nodes of the pool that are drained or will be taken away."""

    pool: str
    workers: int


class PoolChanged(Reason, frozen=True, kw_only=True, gc=False):
    """``workers`` of the job are in a pool that was removed, or that no longer has what one of them asks for.

    While it runs a job changes neither kind nor site, so without another pool of these it gives way.
    """

    pool: str
    workers: int


class CapacityGone(Reason, frozen=True, kw_only=True, gc=False):
    """The pool has ``devices`` fewer than jobs were granted there.

    Args:
        pool: which.
        devices: how many.
        nodes: that are leaving it, or have left.
        restriction: that leaves jobs less than is there; None: there is none.
    """

    pool: str
    devices: int
    nodes: tuple[Departure, ...] = ()
    restriction: Restriction | None = None


class Reserved(Reason, frozen=True, kw_only=True, gc=False):
    """From ``at_s`` on ``devices`` of the pool belong to a reservation."""

    reservation: str
    pool: str
    devices: int
    at_s: float


class QuotaReached(Reason, frozen=True, kw_only=True, gc=False):
    """``node`` may use ``limit`` devices of the pool, borrowed ones included, and its jobs use them all.

    Of the cluster, whose name is empty, it is what all may borrow.
    """

    node: str
    pool: str
    limit: int


class DidNotArrive(Reason, frozen=True, kw_only=True, gc=False):
    """``workers`` that were granted have not arrived within the job's scaling timeout."""

    workers: int


class DidNotReturn(Reason, frozen=True, kw_only=True, gc=False):
    """``workers`` have failed, and have not come back within the job's timeout for faults."""

    workers: int


class SizeNotLegal(Reason, frozen=True, kw_only=True, gc=False):
    """The job's policy does not allow the ``workers`` it has."""

    workers: int


# -- why a job gets nothing at all -------------------------------------------------------------------------


class Suspended(Reason, frozen=True, kw_only=True, gc=False):
    """Somebody paused the job."""


Cause: TypeAlias = Literal["cancelled", "target", "time"]


class Ends(Reason, frozen=True, kw_only=True, gc=False):
    """The job is to end: it was cancelled, has reached its target, or its time is up."""

    cause: Cause


class RetryLater(Reason, frozen=True, kw_only=True, gc=False):
    """The job crashed and is tried again at ``at_s``."""

    at_s: float


class BudgetSpent(Reason, frozen=True, kw_only=True, gc=False):
    """The job has cost ``spent`` of its ``budget``."""

    spent: float
    budget: float


class NoSuchPool(Reason, frozen=True, kw_only=True, gc=False):
    """No pool has what one worker asks for: kind, size, terms, site, labels."""


class NeverFits(Reason, frozen=True, kw_only=True, gc=False):
    """The minimum needs ``need`` devices; with all idle and nothing reserved the job could have ``most``."""

    need: int
    most: int


class NoRoom(Reason, frozen=True, kw_only=True, gc=False):
    """``need`` devices of the pool are wanted; others have the better right to all but ``room``.

    Args:
        pool: the one that comes closest.
        need: devices.
        room: devices, less than ``need``.
        node: whose quota, with what it may borrow, is the limit; None: the pool itself.
        held_for: a job that has run out of patience, holds its place and waits for the same; empty: none.
    """

    pool: str
    need: int
    room: int
    node: str | None
    held_for: str = ""


class Restricted(Reason, frozen=True, kw_only=True, gc=False):
    """A trigger, or a reported capacity, leaves jobs less of the pool than is there."""

    restriction: Restriction


class Protected(Reason, frozen=True, kw_only=True, gc=False):
    """A job of a lower priority keeps its minimum, because it was started a moment ago.

    Args:
        job: that other job.
        by: the job that waits, and may take the devices then.
        pool: whose devices.
        devices: that it may take of them.
        until_s: when the other has run for the shortest time, in seconds since 1970.
    """

    job: str
    by: str
    pool: str
    devices: int
    until_s: float


class OwnedByOthers(Reason, frozen=True, kw_only=True, gc=False):
    """Jobs of a lower priority have ``devices`` of the pool on quotas of other teams or cohorts.

    A priority takes nothing from another owner.
    """

    pool: str
    devices: int


class Drains(Reason, frozen=True, kw_only=True, gc=False):
    """``devices`` of the pool are the job's as soon as those who have them, or had them, have left."""

    pool: str
    devices: int


class OwnDrain(Reason, frozen=True, kw_only=True, gc=False):
    """``workers`` of the job itself are still leaving."""

    workers: int


class AwaitsRepair(Reason, frozen=True, kw_only=True, gc=False):
    """Failed capacity may come back until ``until_s``."""

    until_s: float


class AwaitsArrival(Reason, frozen=True, kw_only=True, gc=False):
    """``workers`` that were granted have not arrived yet, and are given back after ``until_s``."""

    workers: int
    until_s: float


# -- why a job is not larger -------------------------------------------------------------------------------


class AtMaximum(Reason, frozen=True, kw_only=True, gc=False):
    """The policy allows no more than ``workers``."""

    workers: int


class NotWorth(Reason, frozen=True, kw_only=True, gc=False):
    """The next size adds per worker only ``efficiency`` of what the first worker gives."""

    workers: int
    efficiency: float


class ResizeTooDear(Reason, frozen=True, kw_only=True, gc=False):
    """No size in reach earns back a resize of ``cost_s`` within ``horizon_s``."""

    cost_s: float
    horizon_s: float


class CoolingDown(Reason, frozen=True, kw_only=True, gc=False):
    """The job was resized a moment ago and rests until ``until_s``."""

    until_s: float


class StoppedOften(Reason, frozen=True, kw_only=True, gc=False):
    """The job had to give something back more than once within an hour, and at last all: it rests, too."""

    until_s: float


class TargetMet(Reason, frozen=True, kw_only=True, gc=False):
    """``workers`` are enough for the throughput that was asked for, within a tenth."""

    workers: int
    throughput: float


class BudgetAllows(Reason, frozen=True, kw_only=True, gc=False):
    """The rest of the budget, ``left``, would not surely last with more than ``workers``."""

    workers: int
    left: float


GainReason: TypeAlias = MinimumFits | WorthMore
"""Why a job gets more."""

LossReason: TypeAlias = (
    GivesWay
    | NodesLeave
    | PoolChanged
    | CapacityGone
    | Reserved
    | QuotaReached
    | DidNotArrive
    | DidNotReturn
    | SizeNotLegal
)
"""Why a job gives something back."""

StandstillReason: TypeAlias = (
    Suspended | Ends | RetryLater | BudgetSpent | NoSuchPool | NeverFits | StoppedOften
)
"""Why a job gets nothing at all."""

WaitReason: TypeAlias = (
    NoRoom | Restricted | Protected | OwnedByOthers | Drains | OwnDrain | AwaitsRepair | AwaitsArrival
)
"""What a job waits for."""

CeilingReason: TypeAlias = AtMaximum | NotWorth | ResizeTooDear | CoolingDown | TargetMet | BudgetAllows
"""Why a job is not larger."""

Why: TypeAlias = GainReason | LossReason | StandstillReason | WaitReason | CeilingReason

Action: TypeAlias = Literal["start", "grow", "shrink", "move", "preempt", "keep", "wait"]


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What becomes of one job.

    Args:
        job: its name.
        action: ``move`` is a change of pools at one size; ``preempt`` a drain of all workers, after which the
            job waits in its old place; ``keep`` and ``wait`` change nothing.
        workers: what it holds from now on, by pool.
        drain: workers that are asked to leave, by pool; none of them is in ``workers``. Those on nodes that
            go away come first.
        drain_s: how long they may take.
        entitled: the size it is on its way to; larger than ``workers`` while others drain.
        why: of the action, never empty.
        ceiling: why ``entitled`` is not larger; None for a job that has no workers now.
    """

    job: str
    action: Action
    workers: dict[str, int] = {}
    drain: dict[str, int] = {}
    drain_s: float = 0.0
    entitled: int = 0
    why: tuple[Why, ...]
    ceiling: Why | None = None

    @property
    def asked_for(self) -> bool:
        """Nobody takes anything from the job: people, or its own rules, want it to hold nothing."""
        return any(isinstance(why, Suspended | Ends) for why in self.why)


class Overdue(msgspec.Struct, frozen=True, kw_only=True):
    """Workers that should have left by now are to be killed; their devices count until they are gone."""

    job: str
    pool: str
    workers: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A decision for every job, oldest job first."""

    decisions: tuple[Decision, ...] = ()
    overdue: tuple[Overdue, ...] = ()
