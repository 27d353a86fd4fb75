"""The job in the store that tests of the controller's decisions begin with."""

from typing import Any

from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.nouns.job_records import Grant
from elastane.cluster.nouns.jobs import JobSpec


def make_stored_job(spec: JobSpec, **values: Any) -> StoredJob:
    """Return the job ``j`` of Ada's, which has run since second 1 with its 3 workers in the pool ``p``.

    Args:
        values: further fields of the job.
    """
    return StoredJob(
        number=1,
        name="j",
        team="t",
        user="ada",
        state="running",
        workers=3,
        started_s=1.0,
        spec=spec,
        grant=Grant(workers={"p": 3}),
        **values,
    )
