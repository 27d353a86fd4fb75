"""The lifecycle of a job: its attempts, and how it ends. Pure.

Every attempt is judged once, however often an engine observes its end.
`elastane.cluster.controller.jobs.retries` holds the rules of retries.
"""

from typing import Literal

import msgspec

from elastane.cluster.controller.jobs.retries import (
    FIRST_RETRY_S,
    MISSING_OUTCOME,
    compute_retry_wait,
    is_permanent,
)
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.nouns.engine import Observation
from elastane.cluster.nouns.job_records import Wanted
from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.exit_codes import ExitCode
from elastane.run.nouns.attempts import AttemptOutcome


class JobEnd(msgspec.Struct, frozen=True):
    how: Literal["finished", "failed", "cancelled"]
    why: str = ""
    traceback: str = ""


class JobLifecycle(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of one job.

    Args:
        granted: workers of its grant; 0: none, because it waits, is paused or was preempted.
        held: workers that it held at the last observation.
        ending: the end that it will have after its workers are gone, unless it finishes or fails before.
            None: it is to continue.
        gone_by_s: deadline of workers beyond the grant; 0: none was asked to leave.
        beyond_since_s: time since which workers are beyond the grant, although their agent knows the grant or
            its target is unknown; None: there are none.
        over: number of its attempts that have ended and been judged. The next attempt has the next number.
        crashes: the attempts that count against the retry limit.
        retry_at_s: no attempt begins before this time, in seconds since 1970.
        why: how the last attempt ended, if another one follows.
        ended: the end of the job; None: it may still run.
    """

    job: str
    spec: JobSpec
    submitted_s: float = 0.0
    granted: int = 0
    held: int = 0
    ending: JobEnd | None = None
    gone_by_s: float = 0.0
    beyond_since_s: float | None = None
    over: int = 0
    crashes: int = 0
    retry_at_s: float = 0.0
    why: str = ""
    ended: JobEnd | None = None

    @property
    def uses(self) -> int:
        """Number of workers that count as using devices, until an observation says otherwise."""
        return max(self.granted, self.held)


def read_lifecycle(job: StoredJob) -> JobLifecycle:
    return JobLifecycle(
        job=job.name,
        spec=job.spec,
        submitted_s=job.submitted_s,
        granted=sum(job.grant.workers.values()),
        held=sum(held.workers for held in job.observed.held.values()),
        ending=_choose_end(job.wanted, job.why),
        gone_by_s=job.grant.drain_until_s,
        beyond_since_s=job.observed.beyond_since_s,
        over=job.attempts,
        crashes=job.crashes,
        retry_at_s=job.retry_at_s,
        why=job.why,
    )


def _choose_end(wanted: Wanted, why: str) -> JobEnd | None:
    match wanted:
        case "cancel":
            return JobEnd("cancelled")
        case "finish":
            return JobEnd("finished", why)
        case "fail":
            return JobEnd("failed", why)
        case "run" | "pause":
            return None


def apply_observation(lifecycle: JobLifecycle, seen: Observation, now_s: float) -> JobLifecycle:
    """Return the lifecycle after an observation. A repeated observation changes nothing more."""
    lifecycle = msgspec.structs.replace(lifecycle, held=count_held_workers(lifecycle, seen))
    if seen.present or lifecycle.ended is not None:
        return lifecycle
    if seen.attempt > lifecycle.over:
        lifecycle = msgspec.structs.replace(lifecycle, over=seen.attempt)
        lifecycle = judge_attempt(lifecycle, seen.outcome or MISSING_OUTCOME, now_s)
    if lifecycle.ended is None and lifecycle.ending is not None:
        lifecycle = msgspec.structs.replace(lifecycle, ended=lifecycle.ending)
    if lifecycle.ended is not None:
        lifecycle = msgspec.structs.replace(lifecycle, granted=0)
    return lifecycle


def count_held_workers(lifecycle: JobLifecycle, seen: Observation) -> int:
    """Return the number of workers that use devices, or soon will.

    While an agent replaces a dead worker, it has fewer workers than its target. While no agent answers for a
    job, the job holds as many as before. A job cannot claim more than its largest size, because others would
    wait for devices that no job uses.
    """
    if not seen.present:
        return 0
    if seen.held is not None:
        return sum(seen.held.values())
    if seen.workers is None or seen.target is None:
        return lifecycle.held
    _, most = lifecycle.spec.elastic_policy.limits
    believed = max(most, lifecycle.granted, lifecycle.held)
    return min(max(seen.workers, seen.target), believed)


def judge_attempt(lifecycle: JobLifecycle, outcome: AttemptOutcome, now_s: float) -> JobLifecycle:
    """Return the lifecycle after an attempt with this outcome."""
    if outcome.code == ExitCode.OK:
        return msgspec.structs.replace(lifecycle, ended=JobEnd("finished", outcome.why))
    if lifecycle.ending is not None and lifecycle.ending.how == "cancelled":
        return lifecycle
    if is_permanent(outcome):
        return msgspec.structs.replace(lifecycle, ended=JobEnd("failed", outcome.why, outcome.traceback))
    if lifecycle.ending is not None:
        return (
            lifecycle
            if outcome.code == ExitCode.STOPPED_BY_USER
            else _note_disorder(lifecycle, lifecycle.ending, outcome)
        )
    if lifecycle.granted == 0:
        # The controller has stopped it, so the exit code does not matter.
        return msgspec.structs.replace(lifecycle, why=outcome.why)
    if outcome.code == ExitCode.STOPPED_BY_USER:
        return msgspec.structs.replace(lifecycle, why=outcome.why, retry_at_s=now_s + FIRST_RETRY_S)
    crashes, most = lifecycle.crashes + 1, lifecycle.spec.run_policy.job_max_retry_count
    lifecycle = msgspec.structs.replace(lifecycle, crashes=crashes, why=outcome.why)
    if crashes > most:
        times = f"{crashes} crashes, and jobMaxRetryCount is {most}; the last: {outcome.why}"
        return msgspec.structs.replace(lifecycle, ended=JobEnd("failed", times, outcome.traceback))
    return msgspec.structs.replace(lifecycle, retry_at_s=now_s + compute_retry_wait(crashes))


def _note_disorder(lifecycle: JobLifecycle, ending: JobEnd, outcome: AttemptOutcome) -> JobLifecycle:
    """Add to the reason that the last attempt did not stop cleanly, so the newest checkpoint counts."""
    words = f"{ending.why}; its last attempt did not stop cleanly: {outcome.why}"
    return msgspec.structs.replace(lifecycle, ending=msgspec.structs.replace(ending, why=words))
