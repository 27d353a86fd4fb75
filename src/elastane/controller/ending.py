"""When a job ends by its own rules: its target, its time, and how long it is remembered. Pure."""

from typing import Literal

import msgspec

from elastane.api.jobs import JobSpec
from elastane.api.observations import RECENT_STEPS, JobProgress
from elastane.api.rest import Job


class Ending(msgspec.Struct, frozen=True):
    """What the job's rules want of it from now on, and why."""

    wanted: Literal["finish", "fail"]
    why: str


def ending(job: Job, progress: JobProgress | None, now_s: float) -> Ending | None:
    """Whether the job is to end now, by a rule of its own; None: it is not.

    A job that is on its way out already is left alone.

    Args:
        job: as it is stored; not one that has ended.
        progress: as its engine saw it; None: nothing was read.
        now_s: seconds since 1970.
    """
    if job.wanted not in ("run", "pause"):
        return None
    target, loss = job.spec.target.loss, None if progress is None else progress.recent_loss
    if target is not None and loss is not None and loss <= target:
        why = f"its loss, {loss:.6g} over {RECENT_STEPS} steps, has reached its target of {target:.6g}"
        return Ending("finish", why)
    limit_s = job.spec.run_policy.active_deadline_seconds
    if limit_s is not None and active_s(job, now_s) >= limit_s:
        why = f"DeadlineExceeded: it has run for {limit_s:g} s, as long as activeDeadlineSeconds allows"
        return Ending("fail", why)
    return None


def active_s(job: Job, now_s: float) -> float:
    """Seconds that the job has held devices."""
    since_s = job.active_since_s
    return job.active_s + (0.0 if since_s is None else max(0.0, now_s - since_s))


def forget_at_s(spec: JobSpec, ended_s: float) -> float | None:
    """When a job that ended then is forgotten; None: never."""
    keep_s = spec.run_policy.ttl_seconds_after_finished
    return None if keep_s is None else ended_s + keep_s
