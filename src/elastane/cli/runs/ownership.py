"""Whose a run is: of whoever started it, or of a job of the cluster, whose controller decides on it."""

from pathlib import Path

from elastane.api.errors import BadInput, ElastaneError
from elastane.api.job_records import ENDED
from elastane.api.rest import Job
from elastane.api.rundir import RunDir
from elastane.client.context import connect
from elastane.client.runs_home import find_run
from elastane.observability.run_files import read_record


def find_own_run(name: str, *, means: str, do: str) -> RunDir:
    """A run that no controller of a cluster decides on.

    Args:
        name: of the run, or its directory.
        means: what would become of what was asked, were it done to the run of a job.
        do: the verb that asks the controller for it, with ``{job}`` where its name belongs.

    Raises:
        NoSuchRun: there is none.
        BadInput: it is that of a job which goes on.
    """
    run_dir = find_run(name)
    try:
        job = find_active_job(run_dir)
    except ElastaneError:
        return run_dir  # a controller that is away decides nothing: who is here may have to
    if job is not None:
        raise BadInput(
            f"{name} is the run of a job, and its controller decides on it",
            means=means,
            do=do.format(job=job.name),
        )
    return run_dir


def find_active_job(run_dir: RunDir) -> Job | None:
    """The job whose run this is, if it may have another attempt: it is paused, gave way, or is tried again.

    Raises:
        ElastaneError: it is a job's, and the cluster does not answer.
    """
    # The run of a job knows of its attempts from the first one on, and before that has had no events either.
    if not run_dir.attempt.exists() and run_dir.events.exists():
        return None
    try:
        with connect() as cluster:
            job = cluster.job(read_record(run_dir).spec.name)
    except BadInput:
        return None  # no cluster is known here, or it knows no such job
    here = bool(job.run_dir) and Path(job.run_dir).resolve() == run_dir.root.resolve()
    return job if here and job.state not in ENDED else None
