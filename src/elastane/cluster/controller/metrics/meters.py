"""The meters of a controller: counters that grow from scrape to scrape, and the values of one scrape.

The store is read when Prometheus scrapes, in a transaction of its own. The loop only adds a duration to a
histogram, so metrics cost a plan nothing. All counters begin at the start of the controller, as Prometheus
expects of a process.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import TypeAlias, get_args

from sqlalchemy import Connection

from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.controller.metrics import definitions
from elastane.cluster.controller.snapshot import measure_cluster_occupancy
from elastane.cluster.controller.store import documents, history, meter_rows, nodes
from elastane.cluster.controller.store.condition import Condition
from elastane.cluster.controller.store.meter_rows import JobCount
from elastane.cluster.nouns.config import Config, Team
from elastane.cluster.nouns.controller import Check
from elastane.cluster.nouns.pools import Node
from elastane.cluster.nouns.usage import Occupancy, Use
from elastane.common.exposition import (
    HistogramCounter,
    HistogramValue,
    LabelValues,
    MetricDefinition,
    Readings,
)

MOST_JOBS = 250
"""Running jobs with series of their own. With the limits of teams and pools, no scrape has more than 5,000
series; a test adds them up."""
COUNTED_EVENTS = (
    "submitted",
    "started",
    "running",
    "grown",
    "shrunk",
    "moved",
    "preempted",
    "stopping",
    "stopped",
    "crashed",
    "held_up",
    "finished",
    "failed",
    "cancelled",
)
"""Events of jobs that are counted, without their prefix."""
CHECKS: tuple[Check, ...] = get_args(Check)
MOST_TEAMS = 50
MOST_POOLS = 15
OTHERS = "_others"
"""Label of all further teams, or pools. No team and no pool can have this name."""
Gauges: TypeAlias = dict[MetricDefinition, dict[LabelValues, float]]


class Meters:
    """The meters of one controller. Thread-safe.

    Args:
        clock: seconds since 1970.

    Attributes:
        plan_times: durations of plans; the loop adds them.
        arrival_times: times until the workers of a job train; the loop adds them.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.plan_times = HistogramCounter(definitions.PLAN_TIME.bounds)
        self.arrival_times = HistogramCounter(definitions.ARRIVAL_TIME.bounds)
        # One scrape at a time: two would count the same events twice.
        self._lock = threading.Lock()
        self._names = BoundedNames()
        self._event: int | None = None
        self._used_until_s = 0.0
        self._events = Counter[LabelValues]()
        self._queue_times: dict[LabelValues, HistogramCounter] = {}
        self._uses: dict[LabelValues, float] = defaultdict(float)
        self._costs: dict[LabelValues, float] = defaultdict(float)
        self._egress_costs: dict[LabelValues, float] = defaultdict(float)
        self._egress_spent: dict[int, float] = {}

    def begin(self, tx: Connection) -> None:
        """Count from now on; otherwise the first scrape begins."""
        with self._lock:
            self._begin(tx)

    def _begin(self, tx: Connection) -> None:
        self._event = history.find_newest_event(tx)
        self._used_until_s = self._clock()
        self._egress_spent = {
            entry.number: entry.spent for entry in meter_rows.list_egress_spent(tx, self._used_until_s)
        }

    def read(self, tx: Connection, condition: Condition, *, with_jobs: bool) -> Readings:
        """Return the values of a scrape, perhaps with series of the jobs that run."""
        with self._lock:
            if self._event is None:
                self._begin(tx)
            config = documents.read_declared_config(tx)
            self._know_declared(config)
            self._count_events(tx)
            self._count_uses(tx)
            found: dict[MetricDefinition, Mapping[LabelValues, float | HistogramValue]] = {
                **read_health(condition),
                definitions.JOB_EVENTS: self._events,
                definitions.QUEUE_TIME: {team: times.read() for team, times in self._queue_times.items()},
                definitions.PLAN_TIME: {(): self.plan_times.read()},
                definitions.ARRIVAL_TIME: {(): self.arrival_times.read()},
                definitions.USE: self._uses,
                definitions.COST: self._costs,
                definitions.EGRESS_COST: self._egress_costs,
                **self._read_gauges(tx, config, with_jobs=with_jobs),
            }
            # The counters grow after the lock is released.
            return {
                metric: dict(found[metric]) for metric in definitions.CLUSTER_METRICS if found.get(metric)
            }

    def _know_declared(self, config: Config) -> None:
        """Give labels to the names that operators have declared, before others take them."""
        for team in config.teams or ():
            self._names.bound_team(team.name)
        for pool in config.pools or ():
            self._names.bound_pool(pool.name)

    def _count_events(self, tx: Connection) -> None:
        assert self._event is not None, "the caller has begun"
        newest = history.find_newest_event(tx)
        for count in meter_rows.count_events(tx, self._event, newest):
            event = count.kind.removeprefix("job.")
            if event in COUNTED_EVENTS:
                self._events[self._names.bound_team(count.team), event] += count.events
        for name, waited_s in meter_rows.list_queue_times(tx, self._event, newest):
            team = (self._names.bound_team(name),)
            if team not in self._queue_times:
                self._queue_times[team] = HistogramCounter(definitions.QUEUE_TIME.bounds)
            self._queue_times[team].add(waited_s)
        self._event = newest

    def _count_uses(self, tx: Connection) -> None:
        """Add what jobs have used since the last scrape, so that no scrape reads the usage of months."""
        now_s = max(self._clock(), self._used_until_s)
        for row in history.sum_usage(tx, ("team",), self._used_until_s, now_s, None):
            team = self._names.bound_team(row.team)
            self._uses[team, "owned"] += row.owned_device_s
            self._uses[team, "borrowed"] += row.borrowed_device_s
            self._uses[team, "spot"] += row.spot_device_s
            self._costs[team,] += row.cost - row.egress_cost
        # Within an interval of bytes no time is known, so parts of intervals would not add up.
        spent = {entry.number: entry for entry in meter_rows.list_egress_spent(tx, self._used_until_s)}
        for number, entry in spent.items():
            team = self._names.bound_team(entry.team)
            more = max(0.0, entry.spent - self._egress_spent.get(number, 0.0))
            self._costs[team,] += more
            self._egress_costs[team,] += more
        self._egress_spent = {number: entry.spent for number, entry in spent.items()}
        self._used_until_s = now_s

    def _read_gauges(self, tx: Connection, config: Config, *, with_jobs: bool) -> Gauges:
        now_s, known, uses = self._clock(), nodes.list_nodes(tx), tuple(meter_rows.list_uses(tx))
        occupancy = measure_cluster_occupancy(tx, config, [(use,) for _, use in uses], now_s)
        counts = meter_rows.count_jobs(tx)
        found = {
            **measure_job_gauges(counts, self._names, now_s),
            **measure_pool_gauges(occupancy, known, self._names),
            **measure_team_gauges(uses, config.teams or (), self._names),
        }
        if with_jobs:
            running = sum(count.jobs for count in counts if count.state == "running")
            some = meter_rows.list_running_jobs(tx, MOST_JOBS)
            found |= measure_running_jobs(some, running, self._names)
        return found


def read_health(condition: Condition) -> Readings:
    """Return the values that need no store. They are public, as those of ``/v1/health`` are."""
    failing = {problem.check for problem in condition.list_problems()}
    return {
        definitions.INFO: {(version("elastane"),): 1.0},
        definitions.CHECK_FAILING: {(check,): float(check in failing) for check in CHECKS},
    }


class BoundedNames:
    """The teams and the pools with labels of their own: the first ones; all later ones share `OTHERS`.

    A name that has a label keeps it, so that no counter goes back. Thread-safe only for readers.
    """

    def __init__(self) -> None:
        self._teams: set[str] = set()
        self._pools: set[str] = set()

    def bound_team(self, name: str) -> str:
        return _bound(name, self._teams, MOST_TEAMS)

    def bound_pool(self, name: str) -> str:
        return _bound(name, self._pools, MOST_POOLS)


def _bound(name: str, known: set[str], most: int) -> str:
    if name not in known:
        if len(known) >= most:
            return OTHERS
        known.add(name)
    return name


def measure_job_gauges(counts: Iterable[JobCount], names: BoundedNames, now_s: float) -> Gauges:
    """Return the jobs by team and state, and for how long the first of each queue waits."""
    found: Gauges = _make_gauges()
    for count in counts:
        team = names.bound_team(count.team)
        found[definitions.JOBS][team, count.state] += count.jobs
        if count.state == "queued":
            waits = found[definitions.OLDEST_QUEUED]
            waits[team,] = max(waits[team,], now_s - count.oldest_s)
    return found


def measure_pool_gauges(pools: Iterable[Occupancy], nodes: Iterable[Node], names: BoundedNames) -> Gauges:
    """Return the devices and the nodes of each pool."""
    found: Gauges = _make_gauges()
    for pool in pools:
        name = (names.bound_pool(pool.pool),)
        found[definitions.POOL_DEVICES][name] += pool.devices
        found[definitions.POOL_FREE][name] += pool.free
        found[definitions.POOL_LEAVING][name] += pool.leaving
        found[definitions.POOL_RESERVED][name] += pool.reserved
        if name != (OTHERS,):
            found[definitions.POOL_PRICE][name] = pool.price
    for node in nodes:
        found[definitions.NODES][names.bound_pool(node.pool), node.wanted] += 1
    return found


def measure_team_gauges(
    uses: Iterable[tuple[str, Use]], teams: Iterable[Team], names: BoundedNames
) -> Gauges:
    """Return the devices that teams use and own, and on which terms those of each pool are used.

    Args:
        uses: each with the team of its job.
        teams: that are declared.
    """
    found: Gauges = _make_gauges()
    for team, use in uses:
        pool = names.bound_pool(use.pool)
        found[definitions.TEAM_USED][names.bound_team(team), pool] += use.devices
        found[definitions.POOL_USED][pool, use.terms] += use.devices
    for declared in teams:
        for quota in declared.quotas:
            owner = names.bound_team(declared.name), names.bound_pool(quota.pool)
            found[definitions.TEAM_QUOTA][owner] += quota.nominal_quota
    return found


def measure_running_jobs(jobs: Sequence[StoredJob], running: int, names: BoundedNames) -> Gauges:
    """Return the series of running jobs.

    Args:
        jobs: those that have series of their own.
        running: number of all jobs that run.
    """
    found: Gauges = _make_gauges()
    for job in jobs:
        labels, seen = (job.name, names.bound_team(job.team)), job.observed
        found[definitions.JOB_WORKERS][labels] = sum(
            part.workers - part.absent for part in seen.held.values()
        )
        found[definitions.JOB_WANTED][labels] = job.workers
        # An unmodified script reports no steps.
        if seen.step:
            found[definitions.JOB_STEP][labels] = seen.step
        if seen.samples_per_s:
            found[definitions.JOB_SPEED][labels] = seen.samples_per_s
        if seen.unsaved_s:
            found[definitions.JOB_CHECKPOINT][labels] = seen.seen_s - seen.unsaved_s
    found[definitions.JOBS_LEFT_OUT][()] = max(0.0, running - len(jobs))
    return found


def _make_gauges() -> Gauges:
    return defaultdict(lambda: defaultdict(float))
