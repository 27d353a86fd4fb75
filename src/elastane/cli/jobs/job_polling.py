"""Polling of a job until a condition holds."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from elastane.cli.timestamps import localize_timestamps
from elastane.cluster.nouns.job_records import ENDED
from elastane.cluster.nouns.rest import Job

if TYPE_CHECKING:
    from elastane.cluster.client.cluster import Cluster

LOOK_S = 0.5


def wait_for_job(
    cluster: "Cluster", asked: Job, done: Callable[[Job], bool], report: Callable[[str], None]
) -> Job:
    """Poll a job until a condition holds or the job has ended, and return it.

    Meanwhile, report why the job waits, each time that the reasons change. A job that is to stop only waits
    for a commit, so nothing is reported for it. The reasons of ``asked``, the job at the time of the request,
    are already known and not reported.
    """
    shown = asked.explained.sentences
    while True:
        job = cluster.jobs.get(asked.name)
        if done(job) or job.state in ENDED:
            return job
        if job.wanted == "run" and job.explained.sentences != shown:
            shown = job.explained.sentences
            report(localize_timestamps(" ".join(shown)))
        time.sleep(LOOK_S)
