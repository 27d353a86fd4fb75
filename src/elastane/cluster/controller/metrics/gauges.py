"""The gauges of a scrape: jobs, pools, teams and running jobs as they are now. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.controller.metrics import definitions
from elastane.cluster.controller.metrics.bounded_names import OTHERS, BoundedNames
from elastane.cluster.controller.store.meter_rows import JobCount
from elastane.cluster.nouns.config import Team
from elastane.cluster.nouns.pools import Node
from elastane.cluster.nouns.usage import Occupancy, Use
from elastane.common.exposition import LabelValues, MetricDefinition

Gauges: TypeAlias = dict[MetricDefinition, dict[LabelValues, float]]


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
