"""Looking at a job until something is so."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from elastane.api.history import Event
from elastane.api.job_records import ENDED
from elastane.api.rest import Job
from elastane.cli.timestamps import localize_timestamps

if TYPE_CHECKING:
    from elastane.client.cluster import Cluster

LOOK_S = 0.5


def wait_for_job(
    cluster: "Cluster", asked: Job, done: Callable[[Job], bool], tell: Callable[[str], None]
) -> Job:
    """The job once it is so, or has ended; until then its reasons are told, each time they are others.

    Args:
        cluster: asked again and again.
        asked: the job as it was when this was asked for; its reasons of then are no news.
        done: whether it is so.
        tell: takes what the job waits for, while it is to run; whoever stops it waits for a commit only.
    """
    told = asked.explained.sentences
    while True:
        job = cluster.job(asked.name)
        if done(job) or job.state in ENDED:
            return job
        if job.wanted == "run" and job.explained.sentences != told:
            told = job.explained.sentences
            tell(localize_timestamps(" ".join(told)))
        time.sleep(LOOK_S)


def poll_job(cluster: "Cluster", name: str, after: int = 0) -> Iterator[tuple[Job, tuple[Event, ...]]]:
    """Look after look: the job, and what has happened since the look before; the last after it has ended."""
    while True:
        # The job before its events: whatever led to a state that was seen is then read, too.
        job = cluster.job(name)
        events = tuple(cluster.events(name, after=after))
        yield job, events
        if job.state in ENDED:
            return
        after = events[-1].id if events else after
        time.sleep(LOOK_S)
