"""Plans: the scheduler's decisions about each job, with the reasons as values.

`elastane.cluster.scheduler.explanations` turns the reasons into sentences. Code that distinguishes reasons
uses their types, never the sentences. The field ``node`` names the cohort or team that owns a quota; empty:
the cluster itself.
"""

from typing import Literal, TypeAlias

import msgspec

from elastane.cluster.nouns.pools import Departure, Restriction


class Reason(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, gc=False):
    """Base of every reason; the JSON key ``type`` names the class."""


# -- why a job got more ------------------------------------------------------------------------------------


class MinimumFits(Reason, frozen=True, kw_only=True, gc=False):
    """The job's minimum fits on the quota of ``node``."""

    node: str


class WorthMore(Reason, frozen=True, kw_only=True, gc=False):
    """Idle devices, on the quota of ``node``, make the job ``speedup`` times as fast."""

    node: str
    speedup: float


# -- why a job gives something back ------------------------------------------------------------------------

Because: TypeAlias = Literal["owner", "minimum", "priority", "deadline", "fairness", "goodput"]


class GivesWay(Reason, frozen=True, kw_only=True, gc=False):
    """``devices`` of the pool go to another job that has a better claim to them.

    Args:
        because: ``owner``: the other job's team or cohort owns them, and they were borrowed; ``minimum``: the
            other job waits for its minimum, and this one has more than its own or the lower priority;
            ``priority``: the other job has the higher priority; ``deadline``: it would miss its deadline;
            ``fairness``: its team has the smaller dominant share; ``goodput``: they speed it up more.
        team: of this job, if an owner takes the devices; else empty.
        owned: devices of the pool that this team owns, fewer than its nominal quota if the pool has fewer
            devices than were promised.
    """

    job: str
    pool: str
    devices: int
    because: Because
    team: str = ""
    owned: int = 0


class NodesLeave(Reason, frozen=True, kw_only=True, gc=False):
    """``workers`` of the job are on nodes of the pool that are drained or will be taken away."""

    pool: str
    workers: int


class PoolChanged(Reason, frozen=True, kw_only=True, gc=False):
    """``workers`` of the job are in a pool that was removed, or that no longer fits them.

    A running job keeps its device kind, site and engine, so it gives way unless another pool has all three.
    """

    pool: str
    workers: int


class CapacityGone(Reason, frozen=True, kw_only=True, gc=False):
    """The pool has ``devices`` fewer than jobs were granted in it.

    Args:
        nodes: nodes that are leaving it, or have left.
        restriction: a limit that leaves jobs fewer devices than the pool has; None: there is none.
    """

    pool: str
    devices: int
    nodes: tuple[Departure, ...] = ()
    restriction: Restriction | None = None


class Reserved(Reason, frozen=True, kw_only=True, gc=False):
    """From ``at_s`` on, ``devices`` of the pool belong to a reservation."""

    reservation: str
    pool: str
    devices: int
    at_s: float


class QuotaReached(Reason, frozen=True, kw_only=True, gc=False):
    """The jobs of ``node`` use all ``limit`` devices of the pool that it may use, borrowed ones included.

    For the cluster, which has the empty name, ``limit`` is the number that all teams together may borrow.
    """

    node: str
    pool: str
    limit: int


class DidNotArrive(Reason, frozen=True, kw_only=True, gc=False):
    """``workers`` that were granted did not arrive within the job's scaling timeout."""

    workers: int


class DidNotReturn(Reason, frozen=True, kw_only=True, gc=False):
    """``workers`` have failed and were not replaced within the job's timeout for faults."""

    workers: int


class CheaperElsewhere(Reason, frozen=True, kw_only=True, gc=False):
    """A worker of the job leaves ``pool`` for ``target``, where a device costs less.

    Args:
        price: of a device of ``pool`` for an hour.
        target_price: of a device of ``target``.
        saved: what the move saves in ``horizon_s`` seconds.
        cost: what the move costs: the time until the other worker trains, and the bytes of its state.
    """

    pool: str
    price: float
    target: str
    target_price: float
    saved: float
    cost: float
    horizon_s: float


class SizeNotLegal(Reason, frozen=True, kw_only=True, gc=False):
    """The job's policy does not allow the ``workers`` it has."""

    workers: int


# -- why a job gets nothing at all -------------------------------------------------------------------------


class Suspended(Reason, frozen=True, kw_only=True, gc=False):
    """The job is paused."""


Cause: TypeAlias = Literal["cancelled", "target", "time"]


class Ends(Reason, frozen=True, kw_only=True, gc=False):
    """The job must end: it was cancelled, has reached its target, or its time is up."""

    cause: Cause


class RetryLater(Reason, frozen=True, kw_only=True, gc=False):
    """The job crashed and is retried at ``at_s``, in seconds since 1970."""

    at_s: float


class BudgetSpent(Reason, frozen=True, kw_only=True, gc=False):
    """The job has spent its ``budget``, or more."""

    spent: float
    budget: float


class NoSuchPool(Reason, frozen=True, kw_only=True, gc=False):
    """No pool fits one worker by device kind, devices, terms, site and labels.

    Args:
        one_machine: all its workers must be on one machine, and no pool of an engine has agents of its size.
        image: its container image, if pools fit but their engines cannot run it; otherwise empty.
        sites: of a job with a worker at each of its sites: those at which no pool fits, or all if their pools
            do not go together.
        allowed: the sites to which its team is bound, if pools fit at others only.
    """

    one_machine: bool = False
    image: str = ""
    sites: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


class NeverFits(Reason, frozen=True, kw_only=True, gc=False):
    """The minimum needs ``need`` devices; even in an empty cluster the job could have only ``most``."""

    need: int
    most: int


class NoRoom(Reason, frozen=True, kw_only=True, gc=False):
    """The job needs ``need`` devices of the pool; other jobs have a better claim to all but ``room``.

    Args:
        pool: the pool that comes closest.
        need: devices.
        room: devices, less than ``need``.
        node: the node that sets the limit by its quota and its borrowing limit; None: the pool sets it.
        held_for: a job that has waited longer than the patience and holds its place in the pool; empty: none.
    """

    pool: str
    need: int
    room: int
    node: str | None
    held_for: str = ""


class Restricted(Reason, frozen=True, kw_only=True, gc=False):
    """A trigger, or a reported capacity, leaves jobs fewer devices of a pool than it has."""

    restriction: Restriction


class Protected(Reason, frozen=True, kw_only=True, gc=False):
    """A job of a lower priority keeps its minimum, because it has just started.

    Args:
        by: the waiting job that may take the devices afterwards.
        devices: devices that the waiting job may take.
        until_s: when the protection ends, in seconds since 1970.
    """

    job: str
    by: str
    pool: str
    devices: int
    until_s: float


class OwnedByOthers(Reason, frozen=True, kw_only=True, gc=False):
    """Jobs of a lower priority have ``devices`` of the pool on quotas of other teams or cohorts.

    A higher priority takes nothing from another owner.
    """

    pool: str
    devices: int


class Drains(Reason, frozen=True, kw_only=True, gc=False):
    """The job gets ``devices`` of the pool as soon as the workers on them have left."""

    pool: str
    devices: int


class OwnDrain(Reason, frozen=True, kw_only=True, gc=False):
    """``workers`` of the job itself are still leaving."""

    workers: int


class AwaitsRepair(Reason, frozen=True, kw_only=True, gc=False):
    """Failed capacity may come back until ``until_s``."""

    until_s: float


class AwaitsArrival(Reason, frozen=True, kw_only=True, gc=False):
    """``workers`` that were granted have not arrived yet; they are given back after ``until_s``."""

    workers: int
    until_s: float


# -- why a job is not larger -------------------------------------------------------------------------------


class AtMaximum(Reason, frozen=True, kw_only=True, gc=False):
    """The elastic policy allows no more than ``workers``."""

    workers: int


class AtLargestUsefulSize(Reason, frozen=True, kw_only=True, gc=False):
    """No larger size fills whole nodes and shares its virtual ranks evenly, up to ``most``, its maximum."""

    workers: int
    most: int


class NotWorth(Reason, frozen=True, kw_only=True, gc=False):
    """At the next size each further worker adds only ``efficiency`` of one worker's speed."""

    workers: int
    efficiency: float


class NotMeasured(Reason, frozen=True, kw_only=True, gc=False):
    """Beyond ``workers`` the speed cannot be predicted; the largest measured size is ``measured``, or 0."""

    workers: int
    measured: int


class MeasuredSlower(Reason, frozen=True, kw_only=True, gc=False):
    """With ``workers`` the job was no faster than with fewer."""

    workers: int


class ResizeTooDear(Reason, frozen=True, kw_only=True, gc=False):
    """No larger legal size earns back a resize of ``cost_s`` seconds within ``horizon_s`` seconds."""

    cost_s: float
    horizon_s: float


class CoolingDown(Reason, frozen=True, kw_only=True, gc=False):
    """The job was resized recently and stays as it is until ``until_s``."""

    until_s: float


class StoppedOften(Reason, frozen=True, kw_only=True, gc=False):
    """The job was stopped after repeated setbacks, and does not start again before ``until_s``."""

    until_s: float


class TargetMet(Reason, frozen=True, kw_only=True, gc=False):
    """``workers`` are enough for the requested throughput, within a tenth."""

    workers: int
    throughput: float


class BudgetAllows(Reason, frozen=True, kw_only=True, gc=False):
    """The rest of the budget, ``left``, might not last with more than ``workers``."""

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
    | CheaperElsewhere
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

CeilingReason: TypeAlias = (
    AtMaximum
    | AtLargestUsefulSize
    | NotWorth
    | NotMeasured
    | MeasuredSlower
    | ResizeTooDear
    | CoolingDown
    | TargetMet
    | BudgetAllows
)
"""Why a job is not larger."""

Why: TypeAlias = GainReason | LossReason | StandstillReason | WaitReason | CeilingReason

Action: TypeAlias = Literal["start", "grow", "shrink", "move", "preempt", "keep", "wait"]


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The decision about one job.

    Args:
        action: ``move`` changes pools and keeps the size; ``preempt`` drains all workers, and the job then
            keeps its place in the queue; ``keep`` and ``wait`` change nothing.
        workers: workers that it holds from now on, by pool.
        drain: workers that must leave, by pool; none of them is in ``workers``. Workers on leaving nodes come
            first.
        drain_s: seconds they may take.
        entitled: the size that the job will reach; larger than ``workers`` while other jobs drain.
        why: reasons for the action, never empty.
        ceiling: why ``entitled`` is not larger; None for a job without workers.
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
        """Whether users or the job's own rules, not other jobs, are the reason that it holds nothing."""
        return any(isinstance(why, Suspended | Ends) for why in self.why)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One decision for every job, oldest job first."""

    decisions: tuple[Decision, ...] = ()
