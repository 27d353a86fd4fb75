"""What becomes of a job whose record cannot be read. Pure.

Nothing is planned for it. It keeps what it holds while its processes exist. When they are gone, it has ended
if its last attempt says so; else it waits, and no other attempt begins. Cancelling it works: its processes
are killed then.
"""

import msgspec

from elastane.api.exit_codes import ExitCode
from elastane.api.job_records import State, Wanted
from elastane.api.observations import Observation
from elastane.api.orders import KillAttempt, Order
from elastane.api.rest import Job
from elastane.api.safe_text import escape_text
from elastane.controller.noting import LONGEST_WHY
from elastane.controller.observing import WITHOUT_A_WORD, is_permanent

ENDINGS: dict[Wanted, State] = {"cancel": "cancelled", "finish": "finished", "fail": "failed"}
"""What a job that was to end is, once it is gone."""


class Released(msgspec.Struct, frozen=True):
    """It holds nothing any more; it is in this state now, and why."""

    state: State
    why: str


def released(job: Job, seen: Observation) -> Released | None:
    """What an observation says of the job; None: nothing new.

    Args:
        job: that has not ended, and cannot be read.
        seen: by its engine.
    """
    if seen.present:
        return None
    if job.wanted in ENDINGS:
        return Released(ENDINGS[job.wanted], job.why)
    after = Released("paused" if job.wanted == "pause" else "queued", job.why)
    if seen.attempt > job.attempts:
        outcome = seen.outcome or WITHOUT_A_WORD
        why = escape_text(outcome.why, LONGEST_WHY)
        if outcome.code == ExitCode.OK:
            return Released("finished", why)
        if is_permanent(outcome):
            return Released("failed", why)
        after = Released(after.state, why)
    holds = job.state == "running" or job.active_since_s is not None
    return after if holds else None


def order(job: Job, seen: Observation) -> Order | None:
    """What its engine must be told: to end its processes, if it is to end."""
    if seen.present and job.wanted in ENDINGS:
        return KillAttempt(job=job.name, attempt=seen.attempt)
    return None
