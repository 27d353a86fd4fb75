"""The cluster at one time: everything that a plan depends on."""

import msgspec

from elastane.cluster.nouns.config import (
    Cohort,
    DeclaredEngine,
    EgressPrices,
    PriorityClass,
    Reservation,
    SchedulingRules,
    Team,
)
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.plans import Cause
from elastane.cluster.nouns.pools import Departure, Pool, Restriction


class Holding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Workers that a job was granted in one pool and that were not asked to leave.

    Args:
        workers: how many, running or starting.
        leaving: how many of them are on nodes that are drained or will be taken away.
        starting: how many of them have not arrived yet and take no part in the training.
        failed: how many of them had arrived and were lost to a fault.
        pending: how many of them are not on any machine yet, as their engine was last observed.
    """

    pool: str
    workers: int
    leaving: int = 0
    starting: int = 0
    failed: int = 0
    pending: int = 0

    @property
    def absent(self) -> int:
        return self.starting + self.failed


class Draining(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Workers that were asked to leave and are still there; they hold their devices until they are seen gone.

    Args:
        deadline_s: when they should be gone.
        leaving: how many of them are on nodes that are leaving too.
    """

    pool: str
    workers: int
    deadline_s: float
    leaving: int = 0


class JobState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that is neither finished nor cancelled, as the controller knows it.

    Args:
        number: grows with every submission; decides between jobs with the same time of submission.
        spec: as submitted, or as changed since.
        holds: the workers it was granted, at most one entry per pool; empty: the job waits.
        draining: the workers it is giving back.
        started_s: when it was last granted its minimum; None: never.
        resized_s: when its size last changed, other than by a start; None: never.
        setbacks: how often it was stopped or lost devices, each time less than
            `elastane.cluster.nouns.config.QUIET_S` after the time before. A job that gives way to
            another one and goes on with fewer workers has no setback.
        promised: the size that the last plan entitled it to.
        starting_since_s: since when some of ``holds`` have not arrived, counted after a crash from the next
            try; None: all have.
        faulty_since_s: since when some of ``holds`` are missing because of a fault; None: none is.
        successors: how many of the workers that have not arrived replace one that had arrived.
        virtual_ranks: of its run; 0: not known yet.
        retry_at_s: after a crash, it does not start before this time.
        speeds, weights, prior, resize_s, unsaved_s, trained, remaining, parameters: as in
            `elastane.cluster.nouns.job_records.ObservedJob`.
        ends: why the job must end and needs no devices any more: it was cancelled, has reached its target, or
            its time is up; None: it continues.
    """

    number: int
    spec: JobSpec
    submitted_s: float
    holds: tuple[Holding, ...] = ()
    draining: tuple[Draining, ...] = ()
    started_s: float | None = None
    resized_s: float | None = None
    setbacks: int = 0
    promised: int = 0
    starting_since_s: float | None = None
    faulty_since_s: float | None = None
    successors: int = 0
    virtual_ranks: int = 0
    retry_at_s: float = 0.0
    speeds: tuple[tuple[int, float], ...] = ()
    weights: tuple[float, ...] = ()
    prior: tuple[tuple[int, float], ...] = ()
    resize_s: float = 1.0
    unsaved_s: float = 0.0
    trained: float = 0.0
    remaining: float | None = None
    spent: float = 0.0
    parameters: int = 0
    ends: Cause | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def places(self) -> tuple[Holding | Draining, ...]:
        """The workers that use devices: those that stay, and those that were asked to leave."""
        return (*self.holds, *self.draining)

    @property
    def workers(self) -> int:
        return sum(holding.workers for holding in self.holds)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one time.

    Args:
        pools: with unique names.
        engines: of the pools; one that is not among them runs no container images.
        teams: with unique names; a job of a team not among them owns nothing and borrows from the cluster.
        cohorts: with unique names.
        priorities: with unique names.
        egress: the prices of bytes that leave sites, with unique names.
        reservations: the calendar, with unique names.
        jobs: with unique names and numbers, in any order.
        departures: nodes that are leaving their pools, or have just left.
        restrictions: the limits that leave jobs fewer devices of a pool than it has.
    """

    now_s: float
    pools: tuple[Pool, ...] = ()
    engines: tuple[DeclaredEngine, ...] = ()
    teams: tuple[Team, ...] = ()
    cohorts: tuple[Cohort, ...] = ()
    priorities: tuple[PriorityClass, ...] = ()
    egress: tuple[EgressPrices, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    rules: SchedulingRules = SchedulingRules()
    jobs: tuple[JobState, ...] = ()
    departures: tuple[Departure, ...] = ()
    restrictions: tuple[Restriction, ...] = ()
