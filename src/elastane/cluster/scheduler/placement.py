"""Placement: in which pools workers of a job fit, by the pools and by the quotas that pay for them.

A job with data at several sites gets one worker at each of them before it gets a second one anywhere.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable
from operator import itemgetter
from typing import TypeAlias

from elastane.cluster.scheduler.allocation import Allocation, Parts
from elastane.cluster.scheduler.eligibility import PoolGroup
from elastane.cluster.scheduler.planned_job import PlannedJob

Place: TypeAlias = Callable[[Allocation, PlannedJob, int, int], Parts | None]
"""Finds places for a number of workers on the quota of ``path[level]``; None: they do not all fit."""


def place_workers(allocation: Allocation, job: PlannedJob, workers: int, level: int) -> Parts | None:
    """Find places for all ``workers`` on the quota of ``path[level]``; None if they do not fit.

    Workers stay where they are as far as possible.
    """
    for group in list_open_groups(job):
        kept, left = fill_held_places(allocation, job, workers, level, group)
        new, left = fill_new_places(allocation, job, left, level, group, group.for_minimum, beside=kept)
        if left:
            continue
        bare = list_bare_sites(job, group, kept + new)
        if not bare:
            return kept + new
        if job.is_running:
            # Without devices at a site it goes on by the rule of its script, and returns there later.
            return _place_at_sites(allocation, job, workers, level, group, len(bare)) or kept + new
    return None


def _place_at_sites(
    allocation: Allocation, job: PlannedJob, workers: int, level: int, group: PoolGroup, bare: int
) -> Parts | None:
    """Find places at sites without a worker in exchange for some that the job has at others.

    Args:
        bare: at how many sites it has none.
    """
    kept, _ = fill_held_places(allocation, job, max(0, workers - bare), level, group)
    left = workers - sum(count for _, count in kept)
    new, left = fill_new_places(allocation, job, left, level, group, group.for_minimum, beside=kept)
    return None if left or len(list_bare_sites(job, group, kept + new)) >= bare else kept + new


def place_in_held(allocation: Allocation, job: PlannedJob, workers: int, level: int) -> Parts | None:
    """Find places for all ``workers`` where the job already has them; None if they do not fit there.

    None too if one of its sites would have no worker.
    """
    group = list_open_groups(job)[0]
    parts, left = fill_held_places(allocation, job, workers, level, group)
    return None if left or list_bare_sites(job, group, parts) else parts


def place_growth(
    allocation: Allocation, job: PlannedJob, workers: int, level: int, *, held: bool
) -> Parts | None:
    """Find places for ``workers`` beyond the minimum; None if they do not fit.

    With ``held`` only in the places that the job has already, else in new ones.
    """
    group = _find_group(job)
    if held:
        parts, left = fill_held_places(allocation, job, workers, level, group)
    else:
        parts, left = (
            fill_held_places(allocation, job, workers, level, group) if job.loses_rest else ((), workers)
        )
        # In a pool where it has workers that may still be granted, new ones would only replace these.
        order = tuple(
            pool
            for pool in group.for_growth
            if job.loses_rest or job.held.get(pool, 0) <= job.granted.get(pool, 0)
        )
        spared = find_spared_pools(job, level)
        new, left = fill_new_places(allocation, job, left, level, group, order, beside=parts, spared=spared)
        parts += new
    return None if left else parts


def find_spared_pools(job: PlannedJob, level: int) -> frozenset[int]:
    """Return the pools in which growth of a job stops no running job, not even a borrower.

    These are the pools in which the job does not have its minimum. On the quota of the cluster, the last of
    all, every running job that may keep its minimum has it already.
    """
    if level == len(job.path) - 1:
        return frozenset()
    group = _find_group(job)
    if len(group.for_growth) == 1:
        return frozenset()
    minimum = {pool for grant in job.grants if not grant.growth for pool, _ in grant.parts}
    return frozenset(group.for_growth) - minimum


def fill_held(allocation: Allocation, job: PlannedJob, workers: int, level: int) -> Parts:
    """Find up to ``workers`` of the places that the job has."""
    return fill_held_places(allocation, job, workers, level, list_open_groups(job)[0])[0]


def fill_new(allocation: Allocation, job: PlannedJob, workers: int, level: int) -> Parts:
    """Find up to ``workers`` new places, in the group that has room for most of them."""
    found = [
        fill_new_places(allocation, job, workers, level, group, group.for_minimum, beside=())
        for group in list_open_groups(job)
    ]
    return min(found, key=lambda option: option[1])[0]


def fill_held_places(
    allocation: Allocation, job: PlannedJob, workers: int, level: int, group: PoolGroup
) -> tuple[Parts, int]:
    """Find up to ``workers`` places that the job has in a group; and how many workers are left to place."""
    parts: Parts = ()
    # One of each site first: if the job has to give workers up, each site keeps one.
    for site in list_bare_sites(job, group, ()) if len(group.sites) > 1 else ():
        if workers:
            there = [pool for pool in group.for_minimum if pool in site]
            found, left = _fill_held_places(allocation, job, 1, level, there, parts)
            parts, workers = parts + found, workers - 1 + left
    found, workers = _fill_held_places(allocation, job, workers, level, group.for_minimum, parts)
    return parts + found, workers


def _fill_held_places(
    allocation: Allocation, job: PlannedJob, workers: int, level: int, pools: Iterable[int], beside: Parts
) -> tuple[Parts, int]:
    """Find up to ``workers`` places that the job has in some pools, besides those already found.

    Args:
        pools: the ones to be kept first, first: on-demand ones, then the cheapest.
    """
    ledger, devices, granted = allocation.ledger, job.devices, job.granted
    taken = sum_parts(beside)
    parts: list[tuple[int, int]] = []
    for pool in pools:
        stay = min(workers, job.held.get(pool, 0) - granted.get(pool, 0) - taken[pool])
        if stay > 0:
            room = min(find_limit(allocation, job, level, pool, new=False)[0], ledger.free[pool])
            stay = min(stay, int(room // devices) - taken[pool])
            if stay > 0:
                parts.append((pool, stay))
                workers -= stay
    return tuple(parts), workers


def list_bare_sites(job: PlannedJob, group: PoolGroup, parts: Parts) -> tuple[frozenset[int], ...]:
    """Return the pools of each site at which a job has neither a grant nor one of these places."""
    if not group.sites:
        return ()
    reached = {pool for pool, workers in job.granted.items() if workers} | {pool for pool, _ in parts}
    return tuple(site for site in group.sites if not site & reached)


def sum_parts(parts: Parts) -> Counter[int]:
    """Return the workers by pool."""
    found = Counter[int]()
    for pool, workers in parts:
        found[pool] += workers
    return found


def fill_new_places(
    allocation: Allocation,
    job: PlannedJob,
    workers: int,
    level: int,
    group: PoolGroup,
    order: tuple[int, ...],
    *,
    beside: Parts,
    spared: Container[int] = (),
) -> tuple[Parts, int]:
    """Find up to ``workers`` new places in pools tried in ``order``; and how many workers are left to place.

    Args:
        workers: how many to place.
        level: index in the job's path of the node that pays.
        group: the pools are those of this group, or some of them.
        beside: places that the job is about to take as well.
        spared: pools in which no place is taken from the minimum of a running job.
    """
    parts: Parts = ()
    for site in list_bare_sites(job, group, beside) if len(group.sites) > 1 else ():
        if workers:
            here = tuple(pool for pool in order if pool in site)
            found, left = _fill_new_places(allocation, job, 1, level, here, beside + parts, spared)
            parts, workers = parts + found, workers - 1 + left
    found, workers = _fill_new_places(allocation, job, workers, level, order, beside + parts, spared)
    return parts + found, workers


def _fill_new_places(
    allocation: Allocation,
    job: PlannedJob,
    workers: int,
    level: int,
    order: tuple[int, ...],
    beside: Parts,
    spared: Container[int],
) -> tuple[Parts, int]:
    ledger, devices = allocation.ledger, job.devices
    taken = sum_parts(beside)
    parts: list[tuple[int, int]] = []
    for pool in order:
        if not workers:
            break
        room: float = min(ledger.growable[pool], count_free_devices(allocation, pool, spared))
        if room >= devices:
            room = min(room, find_limit(allocation, job, level, pool, new=True)[0])
            more = min(workers, int(room // devices) - taken[pool])
            if more > 0:
                parts.append((pool, more))
                workers -= more
    return tuple(parts), workers


def count_free_devices(allocation: Allocation, pool: int, spared: Container[int]) -> int:
    """Return the devices of a pool that are not granted; if spared, without those of running minimums."""
    return allocation.ledger.free[pool] - (allocation.unconfirmed[pool] if pool in spared else 0)


def find_limit(
    allocation: Allocation, job: PlannedJob, level: int, pool: int, *, new: bool
) -> tuple[float, int]:
    """Return the devices a job may still get on the quota of ``path[level]``, and the node that sets that."""
    ledger, path = allocation.ledger, job.path
    found = ledger.find_limit(path, level, pool, new=new)
    if allocation.waiting_round is None:
        return found
    # Others may have borrowed a part of what a node owns since it was first handed out.
    own = ledger.find_limit(path, path.index(allocation.waiting_round), pool, new=new)
    return min(found, own, key=itemgetter(0))


def list_open_groups(job: PlannedJob) -> tuple[PoolGroup, ...]:
    """Return the groups that a job may still choose from: all its workers have one kind and one place."""
    return (_find_group(job),) if job.entitled else job.groups


def _find_group(job: PlannedJob) -> PoolGroup:
    if len(job.groups) == 1:
        return job.groups[0]
    pool = job.grants[0].parts[0][0]
    return next(group for group in job.groups if pool in group.for_minimum)
