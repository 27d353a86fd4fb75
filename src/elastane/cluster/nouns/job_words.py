"""Jobs as text: their states and numbers as commands and pages show them."""

import math

from elastane.cluster.nouns.job_records import Wanted
from elastane.cluster.nouns.rest import JobSummary
from elastane.common.durations import format_duration
from elastane.run.observability.quantities import format_loss

STATES_WHILE_STOPPING: dict[Wanted, str] = {
    "pause": "pausing",
    "cancel": "cancelling",
    "finish": "finishing",
    "fail": "failing",
}


def find_shown_state(job: JobSummary) -> str:
    """Return the state of a job; for a running job that is to stop, what it is about to do."""
    return STATES_WHILE_STOPPING.get(job.wanted, job.state) if job.state == "running" else job.state


def awaits_next_attempt(job: JobSummary, now_s: float) -> bool:
    """Return whether a job has crashed and waits for its next attempt, with its devices reserved."""
    return find_shown_state(job) == "running" and job.retry_at_s > now_s


def format_job_workers(job: JobSummary) -> str:
    """Return the workers that a job has, and the fewest and most that it may have, and their processes."""
    each = f" x {job.processes}" if job.processes > 1 else ""
    limits = f"{job.min_workers}:{job.max_workers}{each}"
    return f"{job.workers} of {limits}" if job.state == "running" else limits


def format_job_step(job: JobSummary) -> str:
    if not job.step:
        return ""
    return f"{job.step}" + (f"/{job.steps}" if job.steps else "")


def format_job_loss(job: JobSummary) -> str:
    return "" if job.loss is None else format_loss(job.loss)


def format_job_speed(job: JobSummary) -> str:
    return f"{job.samples_per_s:,.0f}" if job.samples_per_s else ""


def format_age(seconds: float) -> str:
    """Return a duration in its largest unit, without tenths of seconds: ``45 s``, ``3 min``, ``2 d``."""
    return format_duration(math.floor(seconds), parts=1)
