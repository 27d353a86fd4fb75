"""Requests of people about a job: submit, change its spec, cancel. Pure."""

import msgspec

from elastane.cluster.controller.jobs.accounts import charge
from elastane.cluster.controller.jobs.end_rules import compute_forget_time
from elastane.cluster.controller.jobs.stored_job import StoredJob, require_alive, require_readable
from elastane.cluster.nouns.job_records import ObservedJob, State, Wanted
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.plans import Cause
from elastane.cluster.scheduler.speed_model import Speeds, pass_on_speeds, select_comparable_speeds

CAUSES: dict[Wanted, Cause] = {"cancel": "cancelled", "finish": "target", "fail": "time"}
"""Why the scheduler gives no workers to a job that is to end."""


def create_job(spec: JobSpec, user: str, now_s: float, earlier: StoredJob | None = None) -> StoredJob:
    """Return a new job, which waits; an earlier one with its program gives it a prior for speeds."""
    wanted = read_wanted(spec)
    return StoredJob(
        number=0,
        name=spec.name,
        team=spec.team,
        user=user,
        queue=spec.queue,
        priority_class=spec.priority_class,
        state=choose_waiting_state(wanted),
        wanted=wanted,
        spec=spec,
        observed=ObservedJob() if earlier is None else ObservedJob(prior=_read_prior(earlier)),
        submitted_s=now_s,
        using_since_s=now_s,
    )


def _read_prior(earlier: StoredJob) -> Speeds:
    seen = earlier.observed
    return pass_on_speeds(*select_comparable_speeds(seen.speeds, seen.weights), seen.prior)


def change_job_spec(job: StoredJob, spec: JobSpec) -> StoredJob:
    """Return the job with another spec, of the same name and team.

    Raises:
        JobUnreadable: its current spec is unknown.
    """
    require_alive(job)
    require_readable(job)
    wanted = job.wanted if job.wanted in CAUSES else read_wanted(spec)
    return msgspec.structs.replace(
        job,
        spec=spec,
        queue=spec.queue,
        priority_class=spec.priority_class,
        wanted=wanted,
        version=job.version + 1,
        state=choose_waiting_state(wanted) if job.state in {"queued", "paused"} else job.state,
    )


def cancel_job(job: StoredJob, now_s: float) -> StoredJob:
    """Return the cancelled job. A job that holds nothing has ended at once.

    Raises:
        JobEnded: the job has ended, and not because it was cancelled.
    """
    if job.wanted == "cancel":
        return job
    require_alive(job)
    cancelled = msgspec.structs.replace(job, wanted="cancel", version=job.version + 1)
    if _may_hold(job):
        return cancelled
    # Devices that it has just given back may not be charged yet, and no later cycle would charge them.
    return msgspec.structs.replace(
        charge(cancelled, (), now_s),
        state="cancelled",
        ended_s=now_s,
        forget_at_s=compute_forget_time(job.spec, now_s),
    )


def _may_hold(job: StoredJob) -> bool:
    if job.unreadable:
        # The loop ends its processes, and records when they are gone.
        return job.state == "running" or bool(job.run_dir)
    return bool(job.grant.workers or job.observed.held) or job.state == "running"


def read_wanted(spec: JobSpec) -> Wanted:
    """Return what the spec asks for, unless the job is to end."""
    return "pause" if spec.run_policy.suspend else "run"


def choose_waiting_state(wanted: Wanted) -> State:
    """Return the state of a job that holds nothing."""
    return "paused" if wanted == "pause" else "queued"
