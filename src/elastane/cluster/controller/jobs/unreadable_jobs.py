"""Jobs with a record that cannot be read. Pure.

Nothing is planned for such a job. It keeps its devices while its processes exist. Once these are gone, the
job has ended if its last attempt says so; otherwise it waits, and no other attempt begins. It can be
cancelled; the engine then kills its processes.
"""

import msgspec

from elastane.cluster.controller.jobs.accounts import charge
from elastane.cluster.controller.jobs.observation_record import LONGEST_WHY
from elastane.cluster.controller.jobs.retries import MISSING_OUTCOME, is_permanent
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.nouns.engine import KillAttempt, Observation, Order
from elastane.cluster.nouns.job_records import Grant, ObservedJob, State, Wanted
from elastane.common.exit_codes import ExitCode
from elastane.common.safe_text import escape_text

ENDS: dict[Wanted, State] = {"cancel": "cancelled", "finish": "finished", "fail": "failed"}
"""The state of a job that was to end, once its processes are gone."""

RELEASED = ("state", "why", "grant", "workers", "observed", "uses")
"""Fields that a release writes even if they seem equal, because the stored ones may be unreadable."""


def release_job(job: StoredJob, seen: Observation, now_s: float) -> StoredJob | None:
    """Return an unreadable job that is alive once it holds nothing; None: nothing is new."""
    found = _judge(job, seen)
    if found is None:
        return None
    state, why = found
    job = msgspec.structs.replace(
        charge(job, (), now_s), state=state, why=why, grant=Grant(), workers=0, observed=ObservedJob()
    )
    return msgspec.structs.replace(job, ended_s=now_s) if job.has_ended else job


def _judge(job: StoredJob, seen: Observation) -> tuple[State, str] | None:
    if seen.present:
        return None
    if job.wanted in ENDS:
        return ENDS[job.wanted], job.why
    state: State = "paused" if job.wanted == "pause" else "queued"
    why = job.why
    if seen.attempt > job.attempts:
        outcome = seen.outcome or MISSING_OUTCOME
        why = escape_text(outcome.why, LONGEST_WHY)
        if outcome.code == ExitCode.OK:
            return "finished", why
        if is_permanent(outcome):
            return "failed", why
    holds = job.state == "running" or job.active_since_s is not None
    return (state, why) if holds else None


def choose_kill(job: StoredJob, seen: Observation) -> Order | None:
    """Return the order that ends the processes of a job that is to end."""
    if seen.present and job.wanted in ENDS:
        return KillAttempt(job=job.name, attempt=seen.attempt)
    return None
