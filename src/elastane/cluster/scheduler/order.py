"""The order of right: which job comes first on the quota of one node."""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator

from elastane.cluster.scheduler.allocation import Allocation
from elastane.cluster.scheduler.planned_job import PlannedJob


def sort_running(jobs: Iterable[PlannedJob]) -> list[PlannedJob]:
    """Sort running jobs by priority; those that lack a part of their minimum last; then by their start."""
    return sorted(
        (job for job in jobs if job.is_running),
        key=lambda job: (
            -job.priority,
            job.live_workers < job.minimum,
            job.state.started_s or 0.0,
            job.number,
        ),
    )


def iterate_waiting(
    allocation: Allocation, node: int, waiting: Iterable[PlannedJob], grain: float
) -> Iterator[PlannedJob]:
    """Yield the waiting jobs of one priority; their order follows the shares of their teams as these change.

    First those that have run out of patience, oldest first; then by the dominant shares of their cohorts and
    teams; then the oldest.
    """
    ordered = sorted(waiting, key=lambda job: job.number)
    yield from (job for job in ordered if job.out_of_patience)
    teams: dict[int, deque[PlannedJob]] = {}
    for job in ordered:
        if not job.out_of_patience:
            teams.setdefault(job.path[0], deque()).append(job)
    heap = [
        (compute_shares(allocation, queue[0], node, grain), queue[0].number, team)
        for team, queue in teams.items()
    ]
    heapq.heapify(heap)
    while heap:
        shares, number, team = heapq.heappop(heap)
        queue = teams[team]
        now = compute_shares(allocation, queue[0], node, grain)
        if now > shares and heap and (now, number, team) > heap[0]:
            heapq.heappush(heap, (now, number, team))
            continue
        yield queue.popleft()
        if queue:
            shares = compute_shares(allocation, queue[0], node, grain)
            heapq.heappush(heap, (shares, queue[0].number, team))


def compute_shares(
    allocation: Allocation, job: PlannedJob, node: int, grain: float, *, pool: int = 0, more: int = 0
) -> tuple[int, ...]:
    """Return the dominant shares of a job's cohorts and team below ``node``, topmost first, in grains.

    Args:
        node: a node above the cohorts and the team.
        grain: step in which shares are compared.
        pool: a pool in which the job would get
        more: devices.
    """
    found = []
    for ancestor in job.path:
        if ancestor == node:
            break
        found.append(int(allocation.ledger.compute_dominant_share(ancestor, pool, more) / grain + 1e-9))
    return tuple(reversed(found))
