"""``elastane explain``: why a run or a job has the size it has."""

from elastane.cli.jobs.explain import job_explained
from elastane.cli.run_or_job import found_run
from elastane.cli.runs.explain import run_explained
from elastane.cli.verb import AsJob, AsJson, Name


def explain(
    name: Name,
    job: AsJob = False,
    as_json: AsJson = False,
) -> None:
    """Say why NAME has its size, and what would change that.

    Or what it waits for. Below it, the decisions that led there, newest first,
    each with its first reason.

    With --json, one object with the keys job, state, wanted, workers,
    explanation and decisions; these with all their reasons.
    """
    run_dir = found_run(name, job=job)
    # Jobs of the cluster are runs of this machine, too; it is the cluster's controller that knows why.
    if run_dir is not None and not run_dir.attempt.exists():
        run_explained(run_dir, as_json=as_json)
    else:
        job_explained(name, as_json=as_json)
