"""Lookup of the run that a user names, and refusal of runs that a command cannot serve."""

from pathlib import Path

from elastane.cluster.client.context import connect
from elastane.cluster.nouns.job_records import ENDED
from elastane.cluster.nouns.rest import Job
from elastane.common.connections.controller_context import find_context
from elastane.common.errors import BadInput, ElastaneError, NoSuchRun
from elastane.common.home import find_runs_home
from elastane.run.machines.visits.run_finder import find_run
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import list_run_names, read_record


def find_run_or_job(name: str, *, job: bool) -> RunDir | None:
    """Return the run with this name or directory; None, always with ``job``: ask the cluster for that job."""
    if job:
        return None
    try:
        return find_run(name)
    except NoSuchRun:
        try:
            find_context()
        except BadInput:
            pass
        else:
            return None
        raise


def find_trained_run(name: str, wanted: str) -> RunDir:
    """Return the run with this name or directory, if its script trains through Elastane.

    ``wanted`` is what other runs lack: it completes "it has no".
    """
    run_dir = find_run(name)
    if read_record(run_dir).spec.contract is None:
        return run_dir
    raise BadInput(
        f"{name} runs an unmodified script (--contract torchrun), so it has no {wanted}",
        means="the model and its snapshots belong to the script, which writes them itself",
        do="use the files of the script; for those of Elastane, call elastane.join() in it (docs/script.md)",
    )


def find_own_run(name: str, *, means: str, do: str) -> RunDir:
    """Return the run with this name or directory, if no controller of a cluster manages it.

    For the error, ``means`` is why the request would fail on the run of a job, and ``do`` the command to use
    for a job, with ``{job}`` in place of its name.
    """
    run_dir = find_run(name)
    try:
        job = find_active_job(run_dir)
    except ElastaneError:
        return run_dir  # the controller does not answer, so the user may have to act
    if job is not None:
        raise BadInput(
            f"{name} is the run of a job, which a controller manages", means=means, do=do.format(job=job.name)
        )
    return run_dir


def find_active_job(run_dir: RunDir) -> Job | None:
    """Return the job that a run belongs to, if the job has not ended and may start another attempt."""
    # The run of a job has an attempt file before its first event.
    if not run_dir.attempt.exists() and run_dir.events.exists():
        return None
    try:
        with connect() as cluster:
            job = cluster.jobs.get(read_record(run_dir).spec.name)
    except BadInput:
        return None  # no cluster is configured here, or it has no such job
    here = bool(job.run_dir) and Path(job.run_dir).resolve() == run_dir.root.resolve()
    return job if here and job.state not in ENDED else None


def list_runs() -> list[RunDir]:
    """Return all runs that have a name, sorted by name."""
    return [RunDir((find_runs_home() / name).resolve()) for name in list_run_names()]
