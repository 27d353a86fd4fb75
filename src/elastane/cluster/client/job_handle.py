"""A submitted job, to follow and change it."""

import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from elastane.cluster.nouns.history import Event
from elastane.cluster.nouns.job_records import ENDED
from elastane.cluster.nouns.jobs import ElasticPolicy
from elastane.cluster.nouns.rest import Job
from elastane.common.errors import RunFailed

if TYPE_CHECKING:
    from elastane.cluster.client.cluster import Cluster

LOOK_S = 0.5


class JobHandle:
    """A job of a controller, by its name. For all else that a job can do, see ``handle.cluster.jobs``.

    Attributes:
        cluster: the connection to the controller, for one thread at a time.
        name: of the job.
    """

    def __init__(self, cluster: "Cluster", name: str) -> None:
        self.cluster = cluster
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the job goes on."""
        self.cluster.close()

    def __repr__(self) -> str:
        return f"JobHandle({self.name!r})"

    def read(self) -> Job:
        """Return all facts about the job now, such as ``state``, ``workers``, ``step`` and ``loss``."""
        return self.cluster.jobs.get(self.name)

    def follow(self) -> Iterator[Event]:
        """Yield the events of the job from its first one, as they happen, until the job has ended."""
        for _, events in poll_job(self.cluster, self.name):
            yield from events

    def scale(self, num_workers: int | tuple[int, int]) -> Job:
        """Set the number of workers, or the fewest and the most; the job goes on meanwhile."""
        low, high = build_policy(num_workers).limits
        return self.cluster.jobs.scale(self.name, min_replicas=low, max_replicas=high)

    def cancel(self) -> Job:
        """End the job for good, at its next commit."""
        return self.cluster.jobs.cancel(self.name)

    def wait(self) -> Job:
        """Wait until the job has finished or is cancelled, and return it.

        Raises:
            RunFailed: the job has failed.
        """
        for job, _ in poll_job(self.cluster, self.name):
            if job.state == "failed":
                raise RunFailed(
                    f"job {self.name} has failed: {job.why}",
                    do=f"read(): its traceback is there; elastane logs {self.name}",
                )
        return job


def build_policy(num_workers: int | tuple[int, int]) -> ElasticPolicy:
    """Return the limits of a job's size: a number, or the fewest and the most workers."""
    low, high = (num_workers, num_workers) if isinstance(num_workers, int) else num_workers
    return ElasticPolicy(min_replicas=low, max_replicas=high)


def poll_job(cluster: "Cluster", name: str) -> Iterator[tuple[Job, tuple[Event, ...]]]:
    """Yield the job and its new events, poll after poll; the last time after the job has ended."""
    after = 0
    while True:
        # Read the job before its events, so that the events that led to its state are read too.
        job = cluster.jobs.get(name)
        events = tuple(cluster.jobs.events(name, after=after))
        yield job, events
        if job.state in ENDED:
            return
        after = events[-1].id if events else after
        time.sleep(LOOK_S)
