"""The cluster index: a snapshot with its pools, its quota tree and its jobs as the rules need them."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from elastane.cluster.nouns.cluster import JobState, Snapshot
from elastane.cluster.nouns.config import Reservation, Team
from elastane.cluster.nouns.pools import Restriction
from elastane.cluster.scheduler.calendar import find_reservation_peak
from elastane.cluster.scheduler.job_builder import JobBuilder, choose_minimum
from elastane.cluster.scheduler.planned_job import PlannedJob
from elastane.cluster.scheduler.quota_ledger import QuotaLedger
from elastane.cluster.scheduler.quota_tree import QuotaTree, build_quota_tree

EXPONENT = 3.0
"""c, for jobs that speed up as ``n ** (2 / 3)``. The shortest job of many weighs this much."""

LEAST_WEIGHT = 0.25
"""The weight of the longest jobs, at least: it gives them a fifth of an equal share, or more."""

CLEARLY_LESS = 2.0
"""For workers that a job holds, its work counts as less by this factor. So two jobs do not change places
whenever the order of their work does, only if one has clearly less."""


class ClusterIndex(NamedTuple):
    """A snapshot, indexed.

    Args:
        pools: index of each pool, by name.
        healthy: of each pool, devices that stay or may come back.
        reserved: of each pool, the reservations that will hold most of it, with the time when they begin.
        growable: of each pool, devices on which new workers may be put.
        booked: of each pool, the reservations that leave no more than that, with the time when they begin.
        jobs: one per job of the snapshot, oldest first.
    """

    snapshot: Snapshot
    pools: dict[str, int]
    healthy: tuple[int, ...]
    reserved: tuple[tuple[tuple[Reservation, float], ...], ...]
    growable: tuple[int, ...]
    booked: tuple[tuple[tuple[Reservation, float], ...], ...]
    tree: QuotaTree
    jobs: tuple[PlannedJob, ...]


def index_cluster(snapshot: Snapshot, repairing: Container[int]) -> ClusterIndex:
    """Index a snapshot; failed workers of jobs that are ``repairing`` count as if they were there."""
    pools = {pool.name: i for i, pool in enumerate(snapshot.pools)}
    now_s, calendar = snapshot.now_s, snapshot.reservations
    announced = [find_reservation_peak(calendar, name, now_s) for name in pools]
    within_horizon = [
        find_reservation_peak(calendar, name, now_s, snapshot.rules.horizon_s) for name in pools
    ]
    healthy = _count_healthy_devices(snapshot, repairing)
    capacity = [max(0, there - gone) for there, (gone, _) in zip(healthy, announced, strict=True)]
    growable = tuple(max(0, there - gone) for there, (gone, _) in zip(healthy, within_horizon, strict=True))
    known = {team.name for team in snapshot.teams}
    # A team that was never declared owns nothing, and has a share as any other team.
    unknown = sorted({state.spec.team for state in snapshot.jobs} - known)
    teams = (*snapshot.teams, *(Team(name=name) for name in unknown))
    running = _count_running_minimums(snapshot.jobs)
    tree = build_quota_tree(snapshot.cohorts, teams, pools, capacity, running)
    paths = {team.name: tree.paths[i] for i, team in enumerate(teams, start=1 + len(snapshot.cohorts))}
    unreserved = build_quota_tree(snapshot.cohorts, teams, pools, healthy, running)
    builder = JobBuilder(
        snapshot, pools, paths, QuotaLedger(unreserved, healthy), QuotaLedger(tree, growable)
    )
    jobs = tuple(builder.build(state) for state in sorted(snapshot.jobs, key=lambda state: state.number))
    weigh_jobs(jobs)
    return ClusterIndex(
        snapshot=snapshot,
        pools=pools,
        healthy=tuple(healthy),
        reserved=tuple(holders for _, holders in announced),
        growable=growable,
        booked=tuple(holders for _, holders in within_horizon),
        tree=tree,
        jobs=jobs,
    )


def _count_running_minimums(jobs: Iterable[JobState]) -> Counter[tuple[str, str]]:
    """Return the devices, by team and pool, on which running jobs have their minimums."""
    found: Counter[tuple[str, str]] = Counter()
    for state in jobs:
        spec = state.spec
        if state.ends or spec.run_policy.suspend:
            continue
        held = {holding.pool: holding.workers for holding in state.holds}
        for pool, workers in choose_minimum(held, spec.elastic_policy.min_replicas).items():
            found[spec.team, pool] += workers * spec.worker_devices
    return found


def count_missing_devices(snapshot: Snapshot) -> dict[str, int]:
    """Return the devices by pool that jobs hold, or have yet to give back, and that no longer exist."""
    found = {pool.name: min(0, pool.leaving - pool.devices) for pool in snapshot.pools}
    for state in snapshot.jobs:
        devices = state.spec.worker_devices
        for place in state.places:
            if place.pool in found:
                found[place.pool] += (place.workers - place.leaving) * devices
    return {pool: devices for pool, devices in found.items() if devices > 0}


def find_restriction(snapshot: Snapshot, pool: str) -> Restriction | None:
    """Return the tightest restriction of a pool; None: there is none."""
    found = [restriction for restriction in snapshot.restrictions if restriction.pool == pool]
    return min(found, key=lambda restriction: restriction.limit, default=None)


def _count_healthy_devices(snapshot: Snapshot, repairing: Container[int]) -> list[int]:
    """Return of each pool the devices that stay, and those gone with failed workers of ``repairing`` jobs."""
    failed: dict[str, int] = {}
    for state in snapshot.jobs:
        for holding in state.holds if state.number in repairing else ():
            devices = holding.failed * state.spec.worker_devices
            failed[holding.pool] = failed.get(holding.pool, 0) + devices
    missing = count_missing_devices(snapshot) if failed else {}
    return [
        max(0, pool.devices - pool.leaving) + min(failed.get(pool.name, 0), missing.get(pool.name, 0))
        for pool in snapshot.pools
    ]


def weigh_jobs(jobs: Iterable[PlannedJob]) -> None:
    """Set the weights of jobs by their remaining work, to favour short jobs within a team and a priority.

    The mean completion time of jobs that share devices is least if the share of a job depends only on the
    rank of its remaining work: of M jobs, the one with the most work first, job i gets
    ``(i / M) ** c - ((i - 1) / M) ** c`` of the devices (heSRPT; Berg, Vesilo and Harchol-Balter, Performance
    Evaluation 144, 2020). There all jobs speed up as ``n ** p``, and ``c = 1 / (1 - p)``. Here speeds are
    measured, so M times the share is the weight of a job's speedup. With weights of 1, jobs that speed up
    alike have equal shares.
    """
    groups: dict[tuple[int, int], list[PlannedJob]] = {}
    for job in jobs:
        if job.max_workers:
            groups.setdefault((job.path[0], job.priority), []).append(job)
    for group in groups.values():
        works = sorted(job.work_s for job in group)
        for job in group:
            job.weight = compute_weight(works, job.work_s)
            job.held_weight = compute_weight(works, job.work_s / CLEARLY_LESS)


def compute_weight(works: Sequence[float], work: float) -> float:
    """Return the weight of a job with ``work`` left, among jobs with ``works``, in ascending order.

    Jobs with the same work have the same weight: the mean of the weights of their ranks.
    """
    count = len(works)
    less, not_more = bisect_left(works, work), bisect_right(works, work)
    if not_more == less:
        # No other has exactly this much: it takes the rank between its neighbours.
        less, not_more = max(0, less - 1), min(count, not_more + 1)
    share: float = ((count - less) / count) ** EXPONENT - ((count - not_more) / count) ** EXPONENT
    return max(LEAST_WEIGHT, share * count / (not_more - less))
