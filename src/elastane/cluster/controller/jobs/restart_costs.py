"""What the scheduler assumes about an unmodified script, which reports neither steps nor speed. Pure."""

from collections.abc import Iterator

from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.nouns.job_records import UNMEASURED_RESIZE_S
from elastane.cluster.scheduler.speed_model import build_speed_model

RESTART_S = 30.0
"""The cost of a resize of an unmodified script, beyond the observed time of its stop: it starts again, loads
its snapshot and repeats the steps after that. None of this can be observed from outside."""

EXAMPLE = 8


def compute_resize_cost_s(job: StoredJob) -> float:
    """Return what a resize of a job costs, in seconds of the whole job's time."""
    return job.observed.resize_s + (RESTART_S if job.spec.contract == "torchrun" else 0.0)


def describe_restarts(job: StoredJob) -> Iterator[str]:
    """Yield sentences about what a change of its size costs a running job, if that restarts the job."""
    if job.spec.contract != "torchrun" or job.state != "running" or job.wanted != "run":
        return
    stop_s = job.observed.resize_s
    source = "assumed until one was measured" if stop_s == UNMEASURED_RESIZE_S else "as measured"
    yield (
        f"Each change of its size restarts its script, and counts as {compute_resize_cost_s(job):.1f} s: "
        f"{stop_s:.2f} s from the announced stop to the new start, {source}, and {RESTART_S:g} s to load its "
        "snapshot and repeat steps, which only the script could measure."
    )
    times = build_speed_model((), EXAMPLE).compute_speed(EXAMPLE)
    yield (
        "Its speed is unknown, because an unmodified script reports no steps: the scheduler assumes that "
        f"{EXAMPLE} workers are {times:.0f} times as fast as one."
    )
