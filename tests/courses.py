"""A job's course where there is no store: changed by the plan and by people as `store.jobs` changes it."""

import msgspec

from elastane.controller.jobs.lifecycle import JobEnd, JobLifecycle
from elastane.controller.jobs.placement import count_held

POOL = "local"


def granting(course: JobLifecycle, workers: int, now_s: float) -> JobLifecycle:
    """The plan has decided on another number of workers; 0 takes all away."""
    workers = 0 if course.ending is not None or course.ended is not None else workers
    if workers == course.granted:
        return course
    held = count_held({POOL: course.held}, {POOL: course.granted}, {POOL: workers})[POOL]
    drain_s = course.spec.elastic_policy.graceful_shutdown_timeout_in_seconds
    gone_by_s = now_s + drain_s if workers < course.granted else 0.0
    return msgspec.structs.replace(course, granted=workers, held=held, gone_by_s=gone_by_s)


def cancelling(course: JobLifecycle, now_s: float) -> JobLifecycle:
    """The user wants the job no more."""
    return granting(msgspec.structs.replace(course, ending=JobEnd("cancelled")), 0, now_s)
