"""The changes that are possible now, from what jobs have to what they are entitled to.

A job that has more than it is entitled to gives the rest back at once. A job that has less takes free
devices: minimums first, then growth, both in the order in which they were granted. Leaving workers count
against quotas and pools until an observation shows that they are gone. While a job of a better right waits
for a device, no other job gets it.

Last, workers of jobs at several sites follow prices to devices that are left.
"""

from dataclasses import dataclass, field

from elastane.cluster.nouns.cluster import Snapshot
from elastane.cluster.nouns.plans import CheaperElsewhere
from elastane.cluster.scheduler.cluster_index import ClusterIndex
from elastane.cluster.scheduler.planned_job import PlannedJob
from elastane.cluster.scheduler.price_moves import find_price_move, may_follow_prices
from elastane.cluster.scheduler.quota_ledger import QuotaLedger
from elastane.cluster.scheduler.sizes import round_down_to_size

LEAST_GAIN = 1e-9
"""Logarithms of speeds that differ by less are equal: the rest is rounding."""


@dataclass(slots=True)
class JobChange:
    """The change of one job that is possible now.

    Args:
        kept: workers that stay, by pool.
        new: workers that start, by pool.
        short: workers that it is entitled to and cannot have yet, by pool.
        drain: workers that are asked to leave, those on nodes that leave included; by the name of the pool,
            because that may have been removed.
        cheaper: why one of ``new`` takes the place of a worker of another pool; None: none does.
    """

    kept: dict[int, int] = field(default_factory=dict)
    new: dict[int, int] = field(default_factory=dict)
    short: dict[int, int] = field(default_factory=dict)
    drain: dict[str, int] = field(default_factory=dict)
    cheaper: CheaperElsewhere | None = None

    @property
    def workers(self) -> dict[int, int]:
        return {pool: self.count_in(pool) for pool in sorted({*self.kept, *self.new})}

    @property
    def size(self) -> int:
        return sum(self.kept.values()) + sum(self.new.values())

    def count_in(self, pool: int) -> int:
        """Return the workers that the job has in a pool after the change."""
        return self.kept.get(pool, 0) + self.new.get(pool, 0)


def compute_changes(cluster: ClusterIndex) -> tuple[JobChange, ...]:
    """Return a change for each job, in the order of the index."""
    ledger = _charge_present_workers(cluster)
    # 1. Keep the workers in places that are granted.
    changes = {job.number: _keep_granted(job) for job in cluster.jobs}
    grants = sorted((grant for job in cluster.jobs for grant in job.grants), key=lambda grant: grant.rank)
    # 2. Start minimums. The place of a minimum in the order is that of its last grant.
    minimums = dict.fromkeys(grant.job for grant in reversed(grants) if not grant.growth)
    for job in reversed(minimums):
        _start_minimum(ledger, job, changes[job.number])
    # 3. Start growth. The place of a job in the order is that of its first growth.
    for job in dict.fromkeys(grant.job for grant in grants if grant.growth):
        _start_growth(ledger, job, changes[job.number])
    # 4. Let workers of jobs that change nothing else follow prices, to devices that no job is entitled to.
    for job in cluster.jobs:
        if may_follow_prices(job, cluster.snapshot):
            _follow_prices(ledger, job, changes[job.number], cluster.snapshot)
    # 5. Ask the other workers to leave.
    for job in cluster.jobs:
        change = changes[job.number]
        size = change.size
        if not size == job.size == job.held_workers:
            # What it cannot have at a legal size stays reserved for it all the same. A job with a policy that
            # was changed, and that loses nothing, keeps its size until it can have a legal one.
            _remove_workers(change, size - round_down_to_size(job.sizes, size))
        for holding in job.state.holds:
            pool = cluster.pools.get(holding.pool, -1)
            gone = holding.workers - change.kept.get(pool, 0)
            if gone:
                change.drain[holding.pool] = gone
    return tuple(changes.values())


def _charge_present_workers(cluster: ClusterIndex) -> QuotaLedger:
    """Return a ledger with all workers that are there now, whether they leave or not."""
    ledger = QuotaLedger(cluster.tree, cluster.growable)
    ledger.free = list(cluster.growable)
    for job in cluster.jobs:
        for place in job.state.places:
            if place.pool in cluster.pools:
                pool = cluster.pools[place.pool]
                # The pool does not count nodes that leave; quotas do as long as they are used.
                ledger.charge(job.path, pool, (place.workers - place.leaving) * job.devices)
                ledger.charge_quota(job.path, pool, place.leaving * job.devices)
    return ledger


def _keep_granted(job: PlannedJob) -> JobChange:
    stay = {pool: min(held, job.granted.get(pool, 0)) for pool, held in job.held.items()}
    return JobChange(kept={pool: workers for pool, workers in stay.items() if workers})


def _start_minimum(ledger: QuotaLedger, job: PlannedJob, change: JobChange) -> None:
    """Start all that is missing of a minimum, or nothing; keep the room for it either way."""
    wanted: dict[int, int] = {}
    for pool, workers in (part for grant in job.grants if not grant.growth for part in grant.parts):
        wanted[pool] = wanted.get(pool, 0) + workers
    missing = {
        pool: workers - change.count_in(pool)
        for pool, workers in wanted.items()
        if workers > change.count_in(pool)
    }
    fits = not job.is_draining and all(_count_free(ledger, job, pool) >= n for pool, n in missing.items())
    _charge_workers(ledger, job, missing if fits else _subtract_own_drain(job, missing))
    (change.new if fits else change.short).update(missing)


def _start_growth(ledger: QuotaLedger, job: PlannedJob, change: JobChange) -> None:
    """Start the largest legal size that is free and earns back the resize; keep the room for the rest."""
    missing = {
        pool: granted - change.count_in(pool) - change.short.get(pool, 0)
        for pool, granted in job.granted.items()
    }
    missing = {pool: workers for pool, workers in missing.items() if workers > 0}
    now = change.size
    free = {pool: min(n, max(0, _count_free(ledger, job, pool))) for pool, n in missing.items()}
    _charge_workers(ledger, job, missing)
    size = _round_down_to_faster_size(job, now + sum(free.values()))
    more = size - now if now and not job.is_draining and _earns_back_resize(job, size) else 0
    for pool, workers in missing.items():
        taken = min(free[pool], max(0, more))
        more -= taken
        if taken:
            change.new[pool] = change.new.get(pool, 0) + taken
        if workers > taken:
            change.short[pool] = change.short.get(pool, 0) + workers - taken


def _follow_prices(ledger: QuotaLedger, job: PlannedJob, change: JobChange, snapshot: Snapshot) -> None:
    """Move one worker to a cheaper pool, if the job keeps all it has and waits for nothing."""
    if change.new or change.short or change.size != job.size:
        return

    def count_free(source: int, target: int) -> int:
        # From a quota that its team owns to one that it borrows, a worker would give way to jobs to which it
        # did not before, and come back.
        level = max(
            job.path.index(grant.node)
            for grant in job.grants
            if any(pool == source for pool, _ in grant.parts)
        )
        room = ledger.find_room(job.path, level, target, new=True)
        return int(min(ledger.free[target], room) // job.devices)

    move = find_price_move(job, change.kept, snapshot, count_free)
    if move is None:
        return
    change.kept[move.source] -= 1
    if not change.kept[move.source]:
        del change.kept[move.source]
    change.new[move.target] = 1
    change.cheaper = move.why
    _charge_workers(ledger, job, change.new)


def _round_down_to_faster_size(job: PlannedJob, workers: int) -> int:
    """Return the largest legal size up to ``workers`` that is faster than the present one, or no larger.

    A job may be granted a size that is faster only as a whole: a part of it may be as slow as what it has.
    """
    before = max(job.size, job.minimum)
    size = round_down_to_size(job.sizes, workers)
    while size > before and job.speed_model.compute_gain(before, size) <= LEAST_GAIN:
        size = round_down_to_size(job.sizes, size - 1)
    return size


def _earns_back_resize(job: PlannedJob, size: int) -> bool:
    """Return whether a resize to a size is worth its cost, or is needed at any cost."""
    held = job.held_workers
    return (
        not 0 < held == job.size
        # A job leaves an illegal size at any cost.
        or round_down_to_size(job.sizes, held) != held
        or size <= held
        # Other jobs have already given their workers up for it.
        or size == job.promised
        or job.speed_model.compute_gain(held, size) >= job.resize_log
    )


def _remove_workers(change: JobChange, excess: int) -> None:
    """Remove ``excess`` workers: those that have not started before those that run."""
    if not excess:
        return
    for workers in (change.new, change.kept):
        for pool in reversed(tuple(workers)):
            gone = min(excess, workers[pool])
            excess -= gone
            workers[pool] -= gone
            if not workers[pool]:
                del workers[pool]


def _count_free(ledger: QuotaLedger, job: PlannedJob, pool: int) -> int:
    """Return the workers that fit now, by the pool and by every quota above."""
    room = ledger.find_room(job.path, len(job.path) - 1, pool, new=False)
    return int(min(ledger.free[pool], room) // job.devices)


def _subtract_own_drain(job: PlannedJob, missing: dict[int, int]) -> dict[int, int]:
    """Return what must be kept for a job besides the devices that its own workers are about to leave."""
    return {pool: max(0, count - job.draining.get(pool, 0)) for pool, count in missing.items()}


def _charge_workers(ledger: QuotaLedger, job: PlannedJob, workers: dict[int, int]) -> None:
    for pool, count in workers.items():
        ledger.charge(job.path, pool, count * job.devices)
