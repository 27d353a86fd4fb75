"""Changes of jobs that users make, over the API or with a resource of Kubernetes: each in one transaction."""

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection

from elastane.cluster.controller.admission import (
    check_image,
    check_priority_class,
    check_residency,
    check_spec,
    check_virtual_ranks,
)
from elastane.cluster.controller.jobs.requests import cancel_job, change_job_spec, create_job
from elastane.cluster.controller.jobs.stored_job import JobNameTaken, StoredJob
from elastane.cluster.controller.rest import team_limits
from elastane.cluster.controller.store import documents, history, jobs
from elastane.cluster.nouns.config import Config
from elastane.cluster.nouns.jobs import JobSpec


def add_job(
    tx: Connection, spec: JobSpec, user: str, now_s: float, check_team: Callable[[str], object]
) -> StoredJob:
    """Store a new job. Its spec has passed `check_spec`.

    Args:
        check_team: raises `BadInput` if there is no system user for the jobs of a team.

    Raises:
        ElastaneError: the job is refused, in the words of the error.
    """
    config = documents.read_declared_config(tx)
    check_priority_class(spec, _list_classes(config))
    check_image(spec, config.engines or ())
    check_residency(spec, config.teams or ())
    team_limits.check_jobs(tx, spec, user)
    check_team(spec.team)
    _claim_name(tx, spec.name)
    job = jobs.insert_job(tx, create_job(spec, user, now_s, jobs.find_earlier_job(tx, spec)))
    message = f"{user} submitted {job.name}"
    history.append_event(tx, "job.submitted", message, now_s, team=job.team, job=job.name)
    return job


def change_job(tx: Connection, before: StoredJob, spec: JobSpec) -> StoredJob:
    """Give a job another spec, of the same name and team."""
    check_spec(spec)
    config = documents.read_declared_config(tx)
    check_priority_class(spec, _list_classes(config))
    if spec.data != before.spec.data:
        check_residency(spec, config.teams or ())
    if spec.elastic_policy != before.spec.elastic_policy:
        check_virtual_ranks(spec, before.observed.virtual_ranks)
    team_limits.check_growth(tx, before.spec, spec)
    after = change_job_spec(before, spec)
    jobs.update_job(tx, before, after)
    return after


def end_job(tx: Connection, before: StoredJob, user: str, now_s: float) -> StoredJob:
    """Cancel a job; it ends at its next commit.

    Raises:
        JobEnded: it has ended, and not because it was cancelled.
    """
    after = cancel_job(before, now_s)
    if after.version != before.version:
        jobs.update_job(tx, before, after)
        # A job with workers gets another event when they are gone.
        kind = "job.cancelled" if after.has_ended else "job.ending"
        message = f"{user} cancelled {after.name}"
        history.append_event(tx, kind, message, now_s, team=after.team, job=after.name)
    return after


def _claim_name(tx: Connection, name: str) -> None:
    """Check that no files of a forgotten job of this name are left."""
    left = jobs.find_left_files(tx, name)
    if not left:
        return
    if Path(left).exists():
        raise JobNameTaken(
            f"the name {name!r} is taken",
            means="a job of that name has ended and is forgotten, but its files are still there",
            do=f"choose another, such as {name}-2, or move its run directory away",
        )
    jobs.release_name(tx, name)


def _list_classes(config: Config) -> set[str]:
    return {priority.name for priority in config.priorities or ()}
