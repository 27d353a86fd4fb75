"""The configuration of a cluster: everything that operators declare, as one document.

As in Kueue, quotas form a tree with teams as its leaves. A node owns its nominal quota and the devices that
its children lend. It lends the devices that it does not use, and borrows from its parent the devices that its
siblings do not use. The root of the tree is the cluster, which owns every device that no other node owns.
"""

from datetime import datetime, time
from typing import Any, Literal

import msgspec

from elastane.cluster.nouns.engine_options import EngineKind
from elastane.cluster.nouns.option_forms import HOME, OWN_HOME
from elastane.cluster.nouns.pools import Pool
from elastane.common.bodies import AnswerBody, RequestBody

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
QUIET_S = 3600.0
"""After this many seconds without giving anything back, a job's setbacks are forgotten."""
OTHER_SITES = "*"
"""Stands for the sites that a list of egress prices does not name."""


class Quota(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A node's share of one pool, in devices.

    Args:
        pool: the pool.
        nominal_quota: devices the node owns.
        borrowing_limit: most devices it may use beyond that; None: no limit.
        lending_limit: most of its devices that others may use while they are idle; None: all.
    """

    pool: str
    nominal_quota: int = 0
    borrowing_limit: int | None = None
    lending_limit: int | None = None


class Cohort(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """An inner node: cohorts and teams that lend to each other before they lend to others.

    Args:
        name: unique among cohorts and teams.
        parent: a cohort; empty: the cluster.
        quotas: at most one per pool.
        weight: its share of idle devices, relative to its siblings'.
    """

    name: str
    parent: str = ""
    quotas: tuple[Quota, ...] = ()
    weight: float = 1.0


class Limits(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Limits on one team's use of the controller itself, so that enough is left for other teams.

    Args:
        jobs: jobs of the team that have not ended.
        jobs_per_user: those of one user in the team.
        tokens: valid tokens of the team; within a day, ten times as many may be created.
        watchers: open event streams with tokens of the team.
        stored_mib: MiB of the specs of its jobs; an ended job counts until it is forgotten.
    """

    jobs: int = 2000
    jobs_per_user: int = 1000
    tokens: int = 100
    watchers: int = 200
    stored_mib: int = 256


class Team(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A leaf of the tree: the owner of jobs.

    Args:
        name: unique among cohorts and teams.
        cohort: the cohort it lends to first; empty: the cluster.
        quotas: at most one per pool; in a pool without one it owns nothing and borrows.
        weight: its share of idle devices, relative to its siblings'.
        limits: limits of its jobs, tokens and streams; a team that is not declared has the defaults.
        sites: those of pools that its jobs may use, because its data must not leave them; empty: all.
    """

    name: str
    cohort: str = ""
    quotas: tuple[Quota, ...] = ()
    weight: float = 1.0
    limits: Limits = Limits()
    sites: tuple[str, ...] = ()


class PriorityClass(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A name for a priority.

    Args:
        name: as jobs write it.
        value: higher is more important.
        default: it applies to jobs that name no class. Of several defaults the highest counts; without one
            the value is 0.
        description: for humans.
    """

    name: str
    value: int
    default: bool = False
    description: str = ""


class DeclaredEngine(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A system that starts the agents of jobs on machines other than the controller's. Pools name it.

    Args:
        name: unique.
        kind: decides which options there are.
        options: see `elastane.cluster.nouns.engine_options`.
    """

    name: str
    kind: EngineKind
    options: dict[str, str] = {}

    @property
    def shares_home(self) -> bool:
        """Whether its machines share the home of the controller."""
        return self.options.get(HOME.name) != OWN_HOME


class EgressPrices(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What bytes cost that leave one site for others.

    Args:
        name: the site that they leave.
        prices: of 10^9 bytes, by the site that gets them; `OTHER_SITES` stands for those that are not named,
            and without it these cost nothing.
    """

    name: str
    prices: dict[str, float]

    def find_price(self, target: str) -> float:
        """Return the price of 10^9 bytes to a site."""
        return self.prices.get(target, self.prices.get(OTHER_SITES, 0.0))


class Weekly(msgspec.Struct, frozen=True, kw_only=True, tag="weekly", forbid_unknown_fields=True):
    """The same hours on some days of every week.

    Args:
        days: on which the hours begin.
        start: local time of day.
        end: local time of day; not after ``start``: on the next day.
        zone: IANA name of the time zone, ``Europe/Berlin``.
    """

    days: tuple[Day, ...] = DAYS[:5]
    start: time
    end: time
    zone: str = "UTC"


class Once(msgspec.Struct, frozen=True, kw_only=True, tag="once", forbid_unknown_fields=True):
    """The time between two moments, each with its time zone."""

    start: datetime
    end: datetime


class Reservation(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Devices that jobs cannot have at certain times: inference from 9 to 18 on working days.

    Args:
        name: unique.
        pool: the pool of the devices.
        devices: how many.
        when: the times.
        announced_ahead_s: jobs begin to give the devices back this long before; at least the longest graceful
            shutdown of the jobs that may hold them, at most 30 days.
    """

    name: str
    pool: str
    devices: int
    when: Weekly | Once
    announced_ahead_s: float = 900.0


class SchedulingRules(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How eager the scheduler is. One set per cluster.

    Args:
        horizon_s: a resize must earn back its cost within this time; at most 30 days, as ``cooldown_s``.
        cooldown_s: for this long after a resize a job neither grows nor yields to equals. It does not grow
            for longer if its resizes cost more than half of this, or after repeated setbacks: twice as long
            after the second, then four times, up to 32 times.
        min_run_time_s: for this long after its start a job cannot be preempted as a whole, except for the
            owner of devices that it borrowed.
        patience_s: a job that has waited longer than this, since it was submitted or stopped, holds its
            place: no other waiting job of the same or a lower priority starts on the devices that it waits
            for.
        worth: a worker that adds less than this fraction of the first worker's speed is not worth its
            devices.
        fairness_grain: dominant shares are compared in steps of this size, so that a difference of a few
            devices moves no job; 0.000001 or more.
    """

    horizon_s: float = 600.0
    cooldown_s: float = 60.0
    min_run_time_s: float = 300.0
    patience_s: float = 600.0
    worth: float = 0.1
    fairness_grain: float = 0.05


class Trigger(RequestBody, frozen=True, kw_only=True):
    """A rule that turns a reported metric into a limit.

    While the metric is above ``above``, or below ``below``, jobs may have at most ``limit`` devices of the
    pool. At least one of the two is given.

    Args:
        name: unique.
        metric: as it is reported.
        above: None: no upper threshold.
        below: None: no lower threshold.
        pool: the pool of the devices.
        limit: how many of its devices jobs may have then.
    """

    name: str
    metric: str
    above: float | None = None
    below: float | None = None
    pool: str
    limit: int


class Config(RequestBody, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that operators declare, as one document. A part that is None stays unchanged."""

    version: Literal[1] = 1
    cohorts: tuple[Cohort, ...] | None = None
    teams: tuple[Team, ...] | None = None
    priorities: tuple[PriorityClass, ...] | None = None
    engines: tuple[DeclaredEngine, ...] | None = None
    pools: tuple[Pool, ...] | None = None
    egress: tuple[EgressPrices, ...] | None = None
    reservations: tuple[Reservation, ...] | None = None
    triggers: tuple[Trigger, ...] | None = None
    rules: SchedulingRules | None = None


class Change(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """One difference between two configurations; ``before`` and ``after`` are whole documents."""

    kind: str
    name: str
    change: Literal["add", "change", "remove"]
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
