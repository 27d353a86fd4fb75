"""Changes of a job's lifecycle by a plan and by a cancellation, without a store."""

import msgspec

from elastane.cluster.controller.jobs.grants import count_held
from elastane.cluster.controller.jobs.lifecycle import JobEnd, JobLifecycle

POOL = "local"


def grant_workers(lifecycle: JobLifecycle, workers: int, now_s: float) -> JobLifecycle:
    """Return the lifecycle after a plan has granted this number of workers; 0 takes all away."""
    workers = 0 if lifecycle.ending is not None or lifecycle.ended is not None else workers
    if workers == lifecycle.granted:
        return lifecycle
    held = count_held({POOL: lifecycle.held}, {POOL: lifecycle.granted}, {POOL: workers})[POOL]
    drain_s = lifecycle.spec.elastic_policy.graceful_shutdown_timeout_in_seconds
    gone_by_s = now_s + drain_s if workers < lifecycle.granted else 0.0
    return msgspec.structs.replace(lifecycle, granted=workers, held=held, gone_by_s=gone_by_s)


def cancel_lifecycle(lifecycle: JobLifecycle, now_s: float) -> JobLifecycle:
    """Return the lifecycle after the user has cancelled the job."""
    return grant_workers(msgspec.structs.replace(lifecycle, ending=JobEnd("cancelled")), 0, now_s)
