"""Reclaim: take back what was granted on quotas further down a job's own path until its minimum fits.

Growth is taken back first, the latest grant first; then minimums of lower priorities, the lowest priority and
the least lost work first. If the minimum does not fit even then, everything is put back.
"""

from collections.abc import Iterator, Sequence

from elastane.cluster.scheduler.allocation import Allocation, Parts
from elastane.cluster.scheduler.placement import Place, list_open_groups
from elastane.cluster.scheduler.planned_job import PlannedJob, WorkerGrant


def reclaim(
    allocation: Allocation,
    job: PlannedJob,
    missing: int,
    level: int,
    place: Place,
    *,
    growth_only: bool = False,
) -> tuple[Parts | None, list[WorkerGrant]]:
    """Take back from the job's own team and cohorts until ``missing`` workers fit, or take back nothing.

    Args:
        missing: how many workers of its minimum.
        level: index in the job's path of the node that pays for them.
        place: finds their places.
        growth_only: take back no minimum.

    Returns:
        Where they fit, None if they do not; and the grants that were taken back.
    """
    taken: list[WorkerGrant] = []
    if not may_fit(allocation, job, missing, level, place):
        return None, []
    allocation.forget_taken_back(job.path[:level])
    for grant in _list_reclaimable(allocation, job, level):
        if growth_only and not grant.growth:
            break
        if grant.taken_back:
            continue
        # A job does not keep growth without its minimum.
        own = [own_grant for own_grant in grant.job.grants if not grant.growth or own_grant is grant]
        for own_grant in own:
            allocation.take_back(own_grant)
        taken += own
        parts = place(allocation, job, missing, level)
        if parts is not None:
            return parts, taken
    put_back(allocation, taken)
    return None, []


def may_fit(allocation: Allocation, job: PlannedJob, workers: int, level: int, place: Place) -> bool:
    """Return whether workers that do not fit might fit once all is taken back that the job may take back.

    False is certain, True has to be tried. The time does not depend on how much could be taken back.
    """
    pools = {pool for group in list_open_groups(job) for pool in group.for_minimum}
    most = {pool: allocation.reclaimable.compute_most(job, level, pool) for pool in pools}
    if not any(map(any, most.values())):
        return False
    for pool, devices in most.items():
        allocation.ledger.discharge(job.path, pool, devices)
    fits = place(allocation, job, workers, level) is not None
    for pool, devices in most.items():
        allocation.ledger.discharge(job.path, pool, [-count for count in devices])
    return fits


def put_back(allocation: Allocation, taken: Sequence[WorkerGrant]) -> None:
    """Restore the grants that `reclaim` took back."""
    for grant in reversed(taken):
        allocation.restore(grant)


def _list_reclaimable(allocation: Allocation, job: PlannedJob, level: int) -> Iterator[WorkerGrant]:
    """Yield grants in the order in which they are taken back; the first few are mostly enough."""
    pools = {pool for group in job.groups for pool in group.for_minimum}
    nodes = job.path[:level][::-1]

    def is_useful(grant: WorkerGrant) -> bool:
        return grant.job is not job and any(pool in pools for pool, _ in grant.parts)

    yield from (grant for grant in allocation.list_latest(nodes) if grant.growth and is_useful(grant))
    minimums = [
        grant
        for grant in allocation.list_latest(nodes)
        if not grant.growth
        and grant.job.priority < job.priority
        and not grant.job.protected
        and is_useful(grant)
    ]
    minimums.sort(key=lambda grant: (grant.job.priority, grant.job.lost_work, -grant.job.number))
    yield from minimums
