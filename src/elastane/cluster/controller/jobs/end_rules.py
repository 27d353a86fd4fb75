"""The rules by which a job ends: its target, its time limit, and how long the cluster remembers it. Pure."""

from typing import Literal

import msgspec

from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.nouns.engine import RECENT_STEPS, JobProgress
from elastane.cluster.nouns.jobs import JobSpec


class EndRequest(msgspec.Struct, frozen=True):
    """The rules of a job end it, for this reason."""

    wanted: Literal["finish", "fail"]
    why: str


def check_end_rules(job: StoredJob, progress: JobProgress | None, now_s: float) -> EndRequest | None:
    """Return the end that the rules of a living job require now; None: it continues, or is ending already."""
    if job.wanted not in ("run", "pause"):
        return None
    target, loss = job.spec.target.loss, None if progress is None else progress.recent_loss
    if target is not None and loss is not None and loss <= target:
        why = f"its loss, {loss:.6g} over {RECENT_STEPS} steps, has reached its target of {target:.6g}"
        return EndRequest("finish", why)
    limit_s = job.spec.run_policy.active_deadline_seconds
    if limit_s is not None and compute_active_time(job, now_s) >= limit_s:
        why = f"DeadlineExceeded: it has run for {limit_s:g} s, as long as activeDeadlineSeconds allows"
        return EndRequest("fail", why)
    return None


def end_by_rule(job: StoredJob, end: EndRequest) -> StoredJob:
    """Return the job, which ends once its workers are gone."""
    return msgspec.structs.replace(job, wanted=end.wanted, why=end.why, version=job.version + 1)


def compute_active_time(job: StoredJob, now_s: float) -> float:
    """Return the seconds during which the job has held devices."""
    since_s = job.active_since_s
    return job.active_s + (0.0 if since_s is None else max(0.0, now_s - since_s))


def compute_forget_time(spec: JobSpec, ended_s: float) -> float | None:
    """Return when the cluster forgets a job that ended at ``ended_s``; None: never."""
    keep_s = spec.run_policy.ttl_seconds_after_finished
    return None if keep_s is None else ended_s + keep_s
