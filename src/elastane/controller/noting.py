"""What of an observation is written down, and what watchers are told. Pure."""

import msgspec

from elastane.api.job_records import ENDED, HeldWorkers, ObservedJob, State
from elastane.api.observations import JobProgress, Observation
from elastane.api.rest import Job
from elastane.api.safe_text import escape_text
from elastane.controller.course import Course
from elastane.controller.elapsed import elapsed
from elastane.controller.placing import placed

LONGEST_WHY, LONGEST_TRACEBACK = 4_000, 64_000
"""Characters of a job's own last words that are kept."""
PROGRESS_S = 5.0
"""Mere progress is written so often; whatever a plan would change for, at once."""


class Said(msgspec.Struct, frozen=True):
    """An event that is about to be told."""

    kind: str
    message: str


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """A job after an observation, as it is to be stored.

    Args:
        job: its name.
        state: where it is now.
        observed: what the engine saw.
        attempts: that are over.
        crashes: of those, its own.
        retry_at_s: no attempt begins before.
        run_dir: where its run lies.
        why: how it ended, or how its last attempt did.
        traceback: the user's own, if the script raised.
    """

    job: str
    state: State
    observed: ObservedJob
    attempts: int = 0
    crashes: int = 0
    retry_at_s: float = 0.0
    run_dir: str = ""
    why: str = ""
    traceback: str = ""


def noted(job: Job, after: Course, seen: Observation, now_s: float) -> Noted:
    """The job after an observation.

    Args:
        job: as it is stored.
        after: its course, after `elastane.controller.observing.observed` of the same observation.
        seen: by its engine.
        now_s: seconds since 1970.
    """
    ended = after.ended
    return Noted(
        job=job.name,
        state=state_of(job, after, present=seen.present),
        observed=_observed(job, after, seen, now_s),
        attempts=after.over,
        crashes=after.crashes,
        retry_at_s=after.retry_at_s,
        run_dir=seen.run_dir or job.run_dir,
        # A job's own words: a terminal would obey them, and not every database takes every character.
        why=escape_text(after.why if ended is None else ended.why, LONGEST_WHY),
        traceback="" if ended is None else escape_text(ended.traceback, LONGEST_TRACEBACK),
    )


def state_of(job: Job, after: Course, *, present: bool) -> State:
    if after.ended is not None:
        return after.ended.how
    if after.granted or present:
        return "running"
    return "paused" if job.wanted == "pause" else "queued"


def matters(job: Job, after: Noted) -> bool:
    """Whether it should be written now: anything but progress, or progress after a while."""
    rest = msgspec.structs.replace(after.observed, seen_s=0.0) != msgspec.structs.replace(
        job.observed, seen_s=0.0
    )
    return changes_the_plan(job, after) or (
        rest and elapsed(job.observed.seen_s, PROGRESS_S, after.observed.seen_s)
    )


def changes_the_plan(job: Job, after: Noted) -> bool:
    """Whether devices became free or taken, or the job can do something it could not."""
    before, now = job.observed, after.observed
    return (job.state, job.attempts, job.crashes, job.run_dir, before.held) != (
        after.state,
        after.attempts,
        after.crashes,
        after.run_dir,
        now.held,
    ) or (before.starting_since_s, before.faulty_since_s) != (now.starting_since_s, now.faulty_since_s)


def told(job: Job, after: Noted) -> tuple[Said, ...]:
    """What watchers hear of the difference."""
    name = job.name
    said: list[Said] = []
    if _arrived(after.observed) and not _arrived(job.observed):
        said.append(Said("job.running", f"{name} runs"))
    if job.wanted != "run" and after.state in ("paused", "queued") and job.state == "running":
        said.append(Said("job.stopped", f"{name} has stopped and given its devices back"))
    if after.crashes > job.crashes:
        said.append(Said("job.crashed", f"{name} crashed ({after.crashes}): {after.why}"))
    if after.state in ENDED:
        said.append(Said(f"job.{after.state}", f"{name} {how_it_ended(after.state, after.why)}"))
    return tuple(said)


def how_it_ended(state: State, why: str) -> str:
    """What became of a job in one of the states that end it, to follow its name."""
    how = {"finished": "has finished", "failed": "has failed", "cancelled": "was cancelled"}[state]
    return f"{how}: {why}" if why else how


def _observed(job: Job, after: Course, seen: Observation, now_s: float) -> ObservedJob:
    before = job.observed
    here = {pool: held.workers for pool, held in before.held.items()}
    held = placed(after.held, job.grant.workers, here)
    arrived = {pool: one.workers - one.absent for pool, one in before.held.items()}
    there = placed(min(after.held, _there(before, seen)), held, arrived)
    lost = _lost(before, after, seen, there)
    starting_since_s, faulty_since_s = _missing(before, after, seen, sum(lost.values()), now_s)
    progress = seen.progress
    known = before if progress is None or not progress.step else _progressed(before, progress, now_s)
    return msgspec.structs.replace(
        known,
        seen_s=now_s,
        # An agent that aims lower since a death holds nothing there, and is missed there all the same.
        held={
            pool: HeldWorkers(
                workers=(workers := held.get(pool, 0)),
                absent=workers - there.get(pool, 0),
                lost=lost.get(pool, 0),
            )
            for pool in held | lost
        },
        starting_since_s=starting_since_s,
        faulty_since_s=faulty_since_s,
        beyond_since_s=_beyond(before, after, seen, now_s),
    )


def _beyond(before: ObservedJob, after: Course, seen: Observation, now_s: float) -> float | None:
    """Since when it holds more than it is granted and aims at, or than nobody says what it aims at."""
    to_be_told = seen.target is not None and seen.target != after.granted
    if after.held <= after.granted or to_be_told or seen.fixed:
        return None
    return now_s if before.beyond_since_s is None else before.beyond_since_s


def _there(before: ObservedJob, seen: Observation) -> int:
    """Workers that have arrived and are there. While nobody answers for a job, as many as before."""
    if not seen.present:
        return 0
    return _arrived(before) if seen.arrived is None else seen.arrived


def _arrived(observed: ObservedJob) -> int:
    return sum(one.workers - one.absent for one in observed.held.values())


def _lost(before: ObservedJob, after: Course, seen: Observation, there: dict[str, int]) -> dict[str, int]:
    """Workers that had been there and are gone, by pool; whoever arrives comes in place of one of them."""
    if not seen.present or seen.fixed or sum(there.values()) >= after.granted:
        return {}
    came = {pool: one.workers - one.absent + one.lost for pool, one in before.held.items()}
    return {pool: gone for pool, workers in came.items() if (gone := workers - there.get(pool, 0)) > 0}


def _missing(
    before: ObservedJob, after: Course, seen: Observation, lost: int, now_s: float
) -> tuple[float | None, float | None]:
    """Since when granted workers have not arrived, and since when some that had are gone.

    Whoever grants more says that they are expected, and so does the end of an attempt that another will
    follow, from when that may begin. Those that had been there are a fault, until those who take their places
    are on their way, and then expected since the death. Where the number is not the controller's to change,
    nothing is missing.

    Args:
        before: what was seen before.
        after: the job's course after this observation.
        seen: by its engine.
        lost: workers that had been there and are gone.
        now_s: seconds since 1970.
    """
    starting_s, faulty_s = before.starting_since_s, before.faulty_since_s
    if seen.present and seen.arrived is None:
        return starting_s, faulty_s
    there = _there(before, seen)
    if seen.fixed or there >= after.granted:
        return None, None
    since_s = starting_s if starting_s is not None else now_s
    if not seen.present:
        # While the controller itself lets a job wait that has crashed, nobody can arrive.
        return max(since_s, after.retry_at_s), None
    awaited = there + lost < after.granted
    had_successors = faulty_s is None and any(one.lost for one in before.held.values())
    if not lost or had_successors:
        # A successor that dies in its turn has no time of its own: else one after the other would have.
        return since_s, None
    died_s = faulty_s if faulty_s is not None else now_s
    if (seen.workers or 0) >= after.granted:
        return (since_s if awaited else died_s), None
    return (since_s if awaited else None), died_s


def _progressed(before: ObservedJob, progress: JobProgress, now_s: float) -> ObservedJob:
    saved_s = progress.saved_s
    return msgspec.structs.replace(
        before,
        step=progress.step,
        steps=progress.steps,
        virtual_ranks=progress.virtual_ranks,
        loss=progress.loss,
        speeds=progress.speeds,
        brief=progress.brief,
        resize_s=before.resize_s if progress.resize_s is None else progress.resize_s,
        unsaved_s=before.unsaved_s if saved_s is None else max(0.0, now_s - saved_s),
        remaining=progress.remaining,
    )
