"""The record of an observation in a stored job, and its events. Pure."""

import msgspec

from elastane.cluster.controller.clock import has_elapsed
from elastane.cluster.controller.jobs.accounts import charge
from elastane.cluster.controller.jobs.end_rules import compute_forget_time
from elastane.cluster.controller.jobs.explanation import describe_end
from elastane.cluster.controller.jobs.grants import assign_pools
from elastane.cluster.controller.jobs.lifecycle import JobLifecycle, apply_observation, read_lifecycle
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.nouns.engine import JobProgress, Observation
from elastane.cluster.nouns.job_records import ENDED, Grant, HeldWorkers, ObservedJob, State
from elastane.common.safe_text import escape_text

LONGEST_WHY, LONGEST_TRACEBACK = 4_000, 64_000
"""Characters to store of a job's own reason and traceback."""
PROGRESS_S = 5.0
"""Progress alone is stored this often; a change that a plan depends on is stored at once."""


class EventText(msgspec.Struct, frozen=True):
    """The kind and the message of an event."""

    kind: str
    message: str


def observe_job(job: StoredJob, seen: Observation, now_s: float) -> StoredJob:
    """Return the job after an observation by its engine."""
    return record_observation(job, apply_observation(read_lifecycle(job), seen, now_s), seen, now_s)


def record_observation(job: StoredJob, after: JobLifecycle, seen: Observation, now_s: float) -> StoredJob:
    """Return the job after an observation, which has changed its lifecycle to ``after``."""
    end = after.ended
    observed = _update_observed(job, after, seen, now_s)
    recorded = msgspec.structs.replace(
        job,
        state=choose_state(job, after, present=seen.present),
        observed=observed,
        step=observed.step,
        attempts=after.over,
        crashes=after.crashes,
        retry_at_s=after.retry_at_s,
        run_dir=seen.run_dir or job.run_dir,
        # The job has written this text: it may have control characters, and ones that databases refuse.
        why=escape_text(after.why if end is None else end.why, LONGEST_WHY),
        traceback="" if end is None else escape_text(end.traceback, LONGEST_TRACEBACK),
    )
    return close_job(recorded, now_s) if recorded.state in ENDED else recorded


def close_job(job: StoredJob, now_s: float) -> StoredJob:
    """Return a job in its final state, without devices from now on."""
    return msgspec.structs.replace(
        charge(job, (), now_s),
        observed=msgspec.structs.replace(job.observed, held={}),
        ended_s=now_s,
        grant=Grant(),
        workers=0,
        forget_at_s=compute_forget_time(job.spec, now_s),
    )


def choose_state(job: StoredJob, after: JobLifecycle, *, present: bool) -> State:
    if after.ended is not None:
        return after.ended.how
    if after.granted or present:
        return "running"
    return "paused" if job.wanted == "pause" else "queued"


def is_worth_storing(job: StoredJob, after: StoredJob) -> bool:
    """Return whether to store the observation now: anything but progress, or progress after a while."""
    rest = msgspec.structs.replace(after.observed, seen_s=0.0) != msgspec.structs.replace(
        job.observed, seen_s=0.0
    )
    return changes_the_plan(job, after) or (
        (rest or after.egress != job.egress)
        and has_elapsed(job.observed.seen_s, PROGRESS_S, after.observed.seen_s)
    )


def changes_the_plan(job: StoredJob, after: StoredJob) -> bool:
    """Return whether devices became free or taken, or the job can do something that it could not."""
    before, now = job.observed, after.observed
    return (job.state, job.attempts, job.crashes, job.run_dir, before.held) != (
        after.state,
        after.attempts,
        after.crashes,
        after.run_dir,
        now.held,
    ) or (before.starting_since_s, before.faulty_since_s) != (now.starting_since_s, now.faulty_since_s)


def list_events(job: StoredJob, after: StoredJob) -> tuple[EventText, ...]:
    name = job.name
    events: list[EventText] = []
    if _count_arrived(after.observed) and not _count_arrived(job.observed):
        events.append(EventText("job.running", f"{name} runs"))
    if job.wanted != "run" and after.state in ("paused", "queued") and job.state == "running":
        events.append(EventText("job.stopped", f"{name} has stopped and given its devices back"))
    if after.crashes > job.crashes:
        events.append(EventText("job.crashed", f"{name} crashed ({after.crashes}): {after.why}"))
    if after.state in ENDED:
        events.append(EventText(f"job.{after.state}", f"{name} {describe_end(after.state, after.why)}"))
    return tuple(events)


def measure_arrival(job: StoredJob, after: StoredJob, now_s: float) -> float | None:
    """Return the seconds for which workers of a job were expected, if all of them train since now."""
    since_s = job.observed.starting_since_s
    if since_s is None or after.observed.starting_since_s is not None or not _count_arrived(after.observed):
        return None
    return max(0.0, now_s - since_s)


def _update_observed(job: StoredJob, after: JobLifecycle, seen: Observation, now_s: float) -> ObservedJob:
    before = job.observed
    here = {pool: held.workers for pool, held in before.held.items()}
    held = assign_pools(after.held, job.grant.workers, here) if seen.held is None else dict(seen.held)
    arrived = {pool: held.workers - held.absent for pool, held in before.held.items()}
    there = assign_pools(min(after.held, _count_present(before, seen)), held, arrived)
    lost = _find_lost(before, after, seen, there)
    starting_since_s, faulty_since_s = _date_missing(before, after, seen, sum(lost.values()), now_s)
    known = before if seen.progress is None else _add_progress(before, seen.progress, now_s)
    return msgspec.structs.replace(
        known,
        seen_s=now_s,
        # After a death an agent may have a lower target, and hold nothing in a pool that has lost workers.
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
        beyond_since_s=_date_excess(before, after, seen, now_s),
    )


def _date_excess(before: ObservedJob, after: JobLifecycle, seen: Observation, now_s: float) -> float | None:
    """Return since when the job holds more than its grant, although no order is on its way."""
    awaits_order = seen.target is not None and seen.target != after.granted
    if after.held <= after.granted or awaits_order or seen.fixed:
        return None
    return now_s if before.beyond_since_s is None else before.beyond_since_s


def _count_present(before: ObservedJob, seen: Observation) -> int:
    """Return the workers that have arrived and are there; while no agent answers, as many as before."""
    if not seen.present:
        return 0
    return _count_arrived(before) if seen.arrived is None else seen.arrived


def _count_arrived(observed: ObservedJob) -> int:
    return sum(held.workers - held.absent for held in observed.held.values())


def _find_lost(
    before: ObservedJob, after: JobLifecycle, seen: Observation, there: dict[str, int]
) -> dict[str, int]:
    """Return the workers that were there and are gone, by pool. An arriving worker replaces one of them."""
    if not seen.present or seen.fixed or sum(there.values()) >= after.granted:
        return {}
    came = {pool: held.workers - held.absent + held.lost for pool, held in before.held.items()}
    return {pool: gone for pool, workers in came.items() if (gone := workers - there.get(pool, 0)) > 0}


def _date_missing(
    before: ObservedJob, after: JobLifecycle, seen: Observation, lost: int, now_s: float
) -> tuple[float | None, float | None]:
    """Return since when granted workers have not arrived, and since when some that had arrived are gone.

    A larger grant expects its workers from then on, and the end of an attempt expects those of the next one
    from its earliest begin. Workers that had arrived and are gone are a fault until their replacements are on
    their way; these are then expected since the death. If the controller cannot change the number of workers,
    none is missing.

    Args:
        after: the lifecycle of the job after this observation.
        lost: number of workers that were there and are gone.
    """
    starting_s, faulty_s = before.starting_since_s, before.faulty_since_s
    if seen.present and seen.arrived is None:
        return starting_s, faulty_s
    there = _count_present(before, seen)
    if seen.fixed or there >= after.granted:
        return None, None
    since_s = starting_s if starting_s is not None else now_s
    if not seen.present:
        # A crashed job waits for its retry, so no worker can arrive before.
        return max(since_s, after.retry_at_s), None
    awaited = there + lost < after.granted
    had_successors = faulty_s is None and any(held.lost for held in before.held.values())
    if not lost or had_successors:
        # A replacement that dies gets no time of its own, or a chain of them would never time out.
        return since_s, None
    died_s = faulty_s if faulty_s is not None else now_s
    if (seen.workers or 0) >= after.granted:
        return (since_s if awaited else died_s), None
    return (since_s if awaited else None), died_s


def _add_progress(before: ObservedJob, progress: JobProgress, now_s: float) -> ObservedJob:
    known = before
    if progress.resize_s is not None:
        known = msgspec.structs.replace(before, resize_s=progress.resize_s)
    if not progress.step:
        # An unmodified script reports no steps. Of others, the files were not read yet.
        return known
    saved_s = progress.saved_s
    return msgspec.structs.replace(
        known,
        step=progress.step,
        stepped_s=before.stepped_s if progress.step == before.step else now_s,
        steps=progress.steps,
        virtual_ranks=progress.virtual_ranks,
        loss=progress.loss,
        speeds=progress.speeds,
        weights=progress.weights,
        unsaved_s=before.unsaved_s if saved_s is None else max(0.0, now_s - saved_s),
        trained=progress.trained,
        remaining=progress.remaining,
        parameters=progress.parameters,
    )
