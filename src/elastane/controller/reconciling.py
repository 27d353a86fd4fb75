"""What an engine must be told, from the difference between what is granted and what was seen. Pure."""

from elastane.api.observations import Observation
from elastane.api.orders import (
    EvictWorkers,
    KillAttempt,
    Order,
    ResizeJob,
    SettleJob,
    StartAttempt,
    StopAttempt,
)
from elastane.controller.course import Course
from elastane.controller.observing import retried_at_s

LINGER_S = 20.0
"""Processes whose agent is gone end within a second or never."""
HOPELESS_S = 300.0
"""Workers that were to leave and are there so long after their time never end while their agent lives: it
hangs, or nobody answers for it. Longer than a run that an eviction has sent back to its checkpoint takes."""


def due(course: Course, seen: Observation, now_s: float) -> Order | None:
    """What is to be ordered now; None: all is as it should be, or will be without an order.

    Args:
        course: of the job, after `elastane.controller.observing.observed` of the same observation.
        seen: by its engine.
        now_s: seconds since 1970.
    """
    if seen.present:
        return _of_the_living(course, seen, now_s)
    if course.ended is not None:
        return SettleJob(job=course.job)
    if course.granted == 0 or now_s < retried_at_s(course.retry_at_s, now_s):
        return None
    return StartAttempt(
        job=course.job,
        attempt=course.over + 1,
        workers=course.granted,
        spec=course.spec,
        submitted_s=course.submitted_s,
    )


def _of_the_living(course: Course, seen: Observation, now_s: float) -> Order | None:
    # One that was judged before it began, because its order was long on its way, is as good as any other.
    kill = KillAttempt(job=course.job, attempt=seen.attempt)
    if not seen.agent:
        # Either it is about to begin, or it is about to be gone.
        return kill if seen.lingering_s > LINGER_S else None
    if course.ended is not None or course.granted == 0:
        return (
            kill
            if now_s >= course.gone_by_s
            else StopAttempt(job=course.job, attempt=seen.attempt, why=course.reason)
        )
    if seen.target is not None and seen.target != course.granted:
        limits = course.spec.elastic_policy.limits
        return ResizeJob(job=course.job, attempt=seen.attempt, workers=course.granted, limits=limits)
    if _is_hopeless(course, seen, now_s):
        return kill
    if seen.workers is not None and seen.workers > course.granted and 0 < course.gone_by_s <= now_s:
        return EvictWorkers(job=course.job, attempt=seen.attempt)
    return None


def _is_hopeless(course: Course, seen: Observation, now_s: float) -> bool:
    """Whether only the end of the attempt gives back what it should have given back long ago."""
    if course.beyond_since_s is None or not course.gone_by_s or seen.fixed or course.held <= course.granted:
        return False
    # Of an earlier shrink the time is over; who is beyond the grant now may be so for a moment.
    return now_s >= max(course.gone_by_s, course.beyond_since_s) + HOPELESS_S
