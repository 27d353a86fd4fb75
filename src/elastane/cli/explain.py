"""``elastane explain``: why a run or a job has the size it has."""

from elastane.cli.command import AsJob, AsJson, Name
from elastane.cli.jobs.explain import explain_job
from elastane.cli.run_lookup import find_run_or_job
from elastane.cli.runs.explain import explain_run


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
    run_dir = find_run_or_job(name, job=job)
    # Jobs of the cluster are runs of this machine, too; it is the cluster's controller that knows why.
    if run_dir is not None and not run_dir.attempt.exists():
        explain_run(run_dir, as_json=as_json)
    else:
        explain_job(name, as_json=as_json)
