"""The figures that show how well the cluster serves its jobs. Pure."""

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from elastane.cluster.nouns.job_records import State
from elastane.cluster.nouns.usage import ClusterFigures, UsageRow

INTERVENTIONS = frozenset(
    {
        *("job.paused", "job.resumed", "job.cancelled", "job.scaled", "job.amended", "job.reprioritised"),
        *("node.drain", "node.failed", "node.use"),
    }
)
"""The actions of the audit log with which people help a cluster."""


class JobTimes(msgspec.Struct, frozen=True):
    """The times of a job, in seconds since 1970; None: that has not happened.

    Args:
        reached: it ended because it had reached its target.
    """

    state: State
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    reached: bool


def compute_cluster_figures(
    jobs: Iterable[JobTimes],
    *,
    from_s: float,
    until_s: float,
    usage: Sequence[UsageRow],
    used_device_s: float,
    devices: int,
    began_s: float | None,
    interventions: int,
) -> ClusterFigures:
    """Return the figures between two times.

    Args:
        jobs: at least those that were alive at some time in between.
        usage: of their devices in between, by job.
        used_device_s: the device-seconds of all teams.
        devices: of all pools, now.
        began_s: the time of the first event of the cluster; None: it has had no event.
        interventions: the number of lines of the audit log with such an action.
    """
    known = list(jobs)
    waits = [
        max(0.0, job.started_s - job.submitted_s)
        for job in known
        if job.started_s is not None and from_s <= job.started_s <= until_s
    ]
    waiting = [
        max(0.0, until_s - job.submitted_s)
        for job in known
        if job.state == "queued" and job.started_s is None
    ]
    ended = [
        (max(0.0, job.ended_s - job.submitted_s), job.reached)
        for job in known
        if job.state == "finished" and job.ended_s is not None and from_s <= job.ended_s <= until_s
    ]
    lived_s = 0.0 if began_s is None else max(0.0, until_s - max(from_s, began_s))
    return ClusterFigures(
        from_s=from_s,
        until_s=until_s,
        started=len(waits),
        queue_s=_find_median(waits),
        queue_longest_s=max(waits, default=None),
        queued=len(waiting),
        queued_longest_s=max(waiting, default=None),
        used_device_s=used_device_s,
        available_device_s=devices * lived_s,
        finished=len(ended),
        finish_s=_find_median([took_s for took_s, _ in ended]),
        reached=sum(reached for _, reached in ended),
        target_s=_find_median([took_s for took_s, reached in ended if reached]),
        interventions=interventions,
        runs=len(usage),
        cost=sum(row.cost for row in usage),
    )


def _find_median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
