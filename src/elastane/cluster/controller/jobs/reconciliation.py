"""Reconciliation: the order that brings the engine from the observed to the granted workers. Pure."""

from elastane.cluster.controller.jobs.lifecycle import JobLifecycle
from elastane.cluster.controller.jobs.retries import compute_retry_time
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.nouns.engine import (
    EvictWorkers,
    KillAttempt,
    Observation,
    Order,
    ResizeJob,
    SettleJob,
    StartAttempt,
    StopAttempt,
)

LINGER_S = 20.0
"""Processes without an agent are killed after this time. Most end by themselves within a second."""
HOPELESS_S = 300.0
"""Workers that are still there this long after their deadline do not leave while their agent runs: it hangs,
or none answers for them. A run that returns to its checkpoint after an eviction takes less time than this."""


def choose_order(lifecycle: JobLifecycle, seen: Observation, now_s: float) -> Order | None:
    """Return the order for the engine; None: none is needed.

    A `StopAttempt` comes without its ``why``; the caller adds it.

    Args:
        lifecycle: of the job, after this observation.
    """
    if seen.present:
        return _order_present(lifecycle, seen, now_s)
    if lifecycle.ended is not None:
        return SettleJob(job=lifecycle.job)
    if lifecycle.granted == 0 or now_s < compute_retry_time(lifecycle.retry_at_s, now_s):
        return None
    return StartAttempt(
        job=lifecycle.job,
        attempt=lifecycle.over + 1,
        workers=lifecycle.granted,
        spec=lifecycle.spec,
        submitted_s=lifecycle.submitted_s,
    )


def choose_order_after_end(job: StoredJob, seen: Observation, now_s: float) -> Order | None:
    if not seen.present:
        return SettleJob(job=job.name)
    over = max(job.attempts, seen.attempt - 1)
    return choose_order(JobLifecycle(job=job.name, spec=job.spec, over=over), seen, now_s)


def _order_present(lifecycle: JobLifecycle, seen: Observation, now_s: float) -> Order | None:
    # A delayed order may begin an attempt after it was judged. Such an attempt is treated like any other.
    kill = KillAttempt(job=lifecycle.job, attempt=seen.attempt)
    if not seen.agent:
        # The attempt is about to begin or to end.
        return kill if seen.lingering_s > LINGER_S else None
    if lifecycle.ended is not None or lifecycle.granted == 0:
        return (
            kill
            if now_s >= lifecycle.gone_by_s
            else StopAttempt(job=lifecycle.job, attempt=seen.attempt, why="")
        )
    if seen.target is not None and seen.target != lifecycle.granted:
        limits = lifecycle.spec.elastic_policy.limits
        return ResizeJob(job=lifecycle.job, attempt=seen.attempt, workers=lifecycle.granted, limits=limits)
    if _is_hopeless(lifecycle, seen, now_s):
        return kill
    if seen.workers is not None and seen.workers > lifecycle.granted and 0 < lifecycle.gone_by_s <= now_s:
        return EvictWorkers(job=lifecycle.job, attempt=seen.attempt)
    return None


def _is_hopeless(lifecycle: JobLifecycle, seen: Observation, now_s: float) -> bool:
    """Return whether only the end of the attempt frees workers that should have left long ago."""
    if lifecycle.beyond_since_s is None or not lifecycle.gone_by_s or seen.fixed:
        return False
    if lifecycle.held <= lifecycle.granted:
        return False
    # The deadline may be that of an earlier shrink, so the time beyond the grant counts too.
    return now_s >= max(lifecycle.gone_by_s, lifecycle.beyond_since_s) + HOPELESS_S
