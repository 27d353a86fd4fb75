"""Weights that favour short jobs, within a team and a priority.

The mean completion time of jobs that share devices is least if the share of a job depends only on the rank of
its remaining work: of M jobs, the one with the most work first, job i gets ``(i / M) ** c - ((i - 1) / M) **
c`` of the devices (heSRPT; Berg, Vesilo and Harchol-Balter, Performance Evaluation 144, 2020). There all jobs
speed up as ``n ** p``, and ``c = 1 / (1 - p)``. Here speeds are measured, so M times the share is the weight
of a job's speedup. With weights of 1, jobs that speed up alike have equal shares.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from elastane.cluster.scheduler.planned_job import PlannedJob

EXPONENT = 3.0
"""c, for jobs that speed up as ``n ** (2 / 3)``. The shortest job of many weighs this much."""

LEAST_WEIGHT = 0.25
"""The weight of the longest jobs, at least: it gives them a fifth of an equal share, or more."""

CLEARLY_LESS = 2.0
"""For workers that a job holds, its work counts as less by this factor. So two jobs do not change places
whenever the order of their work does, only if one has clearly less."""


def weigh_jobs(jobs: Iterable[PlannedJob]) -> None:
    """Set the weights of jobs, by their remaining work."""
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
