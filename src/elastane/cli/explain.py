"""``elastane explain``: the reasons for the size of a run or a job."""

from elastane.cli.command import AsJob, AsJson, Name
from elastane.cli.jobs.explain import explain_job
from elastane.cli.run_lookup import find_run_or_job
from elastane.cli.runs.explain import explain_run


def explain(
    name: Name,
    job: AsJob = False,
    as_json: AsJson = False,
) -> None:
    """Explain why NAME has its size or waits, and what would change that.

    The command then lists the decisions that led to this size, newest first,
    each with its main reason.

    With --json, one object with the keys job, state, wanted, workers,
    explanation and decisions. Each decision has all its reasons.
    """
    run_dir = find_run_or_job(name, job=job)
    # The run of a job may be on this machine too; only the controller of the cluster knows the reasons.
    if run_dir is not None and not run_dir.attempt.exists():
        explain_run(run_dir, as_json=as_json)
    else:
        explain_job(name, as_json=as_json)
