"""A job's course where there is no store: changed by the plan and by people as `store.jobs` changes it."""

import msgspec

from elastane.controller.course import Course, Ended
from elastane.controller.placing import still_held

POOL = "local"


def granting(course: Course, workers: int, now_s: float) -> Course:
    """The plan has decided on another number of workers; 0 takes all away."""
    workers = 0 if course.ending is not None or course.ended is not None else workers
    if workers == course.granted:
        return course
    held = still_held({POOL: course.held}, {POOL: course.granted}, {POOL: workers})[POOL]
    drain_s = course.spec.elastic_policy.graceful_shutdown_timeout_in_seconds
    gone_by_s = now_s + drain_s if workers < course.granted else 0.0
    return msgspec.structs.replace(course, granted=workers, held=held, gone_by_s=gone_by_s)


def cancelling(course: Course, now_s: float) -> Course:
    """The user wants the job no more."""
    return granting(msgspec.structs.replace(course, ending=Ended("cancelled")), 0, now_s)
