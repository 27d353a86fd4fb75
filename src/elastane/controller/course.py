"""What the controller keeps of a job between two turns, as far as its attempts are concerned."""

from typing import Literal

import msgspec

from elastane.api.job_records import Wanted
from elastane.api.jobs import JobSpec
from elastane.api.rest import Job


class Ended(msgspec.Struct, frozen=True):
    """The job is over for good.

    Args:
        how: in one word.
        why: in a sentence.
        traceback: the user's own, if the script raised.
    """

    how: Literal["finished", "failed", "cancelled"]
    why: str = ""
    traceback: str = ""


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """One job on its way.

    Args:
        job: its name.
        spec: as submitted, or as changed since.
        submitted_s: when, in seconds since 1970.
        granted: workers the plan has given it; 0: none, because it waits, is paused or was preempted.
        reason: of that number, in a sentence.
        held: workers it was last seen to hold.
        ending: nobody wants it any more, and that is what it will be once it is gone, unless it finishes or
            fails by itself before; None: it goes on.
        gone_by_s: when workers beyond those granted are to be gone; 0: nobody was asked to leave.
        beyond_since_s: since when there are such workers, though their agent was told, or nobody says that it
            was not; None: there are none.
        over: so many of its attempts have ended and been judged. The next has the number after.
        crashes: of those, how many count against the retry limit.
        retry_at_s: no attempt begins before; in seconds since 1970.
        why: how the last attempt ended, if another is to follow.
        ended: None: it may still run.
    """

    job: str
    spec: JobSpec
    submitted_s: float = 0.0
    granted: int = 0
    reason: str = ""
    held: int = 0
    ending: Ended | None = None
    gone_by_s: float = 0.0
    beyond_since_s: float | None = None
    over: int = 0
    crashes: int = 0
    retry_at_s: float = 0.0
    why: str = ""
    ended: Ended | None = None

    @property
    def uses(self) -> int:
        """Workers whose devices nobody else can have: not seen gone is not free."""
        return max(self.granted, self.held)


def course_of(job: Job) -> Course:
    """A job that has not ended, as the store has it."""
    return Course(
        job=job.name,
        spec=job.spec,
        submitted_s=job.submitted_s,
        granted=sum(job.grant.workers.values()),
        # The first says what is so, the second why.
        reason=" ".join(job.explained.sentences[1:2]),
        held=sum(held.workers for held in job.observed.held.values()),
        ending=_ending(job.wanted, job.why),
        gone_by_s=job.grant.drain_until_s,
        beyond_since_s=job.observed.beyond_since_s,
        over=job.attempts,
        crashes=job.crashes,
        retry_at_s=job.retry_at_s,
        why=job.why,
    )


def _ending(wanted: Wanted, why: str) -> Ended | None:
    match wanted:
        case "cancel":
            return Ended("cancelled")
        case "finish":
            return Ended("finished", why)
        case "fail":
            return Ended("failed", why)
        case "run" | "pause":
            return None
