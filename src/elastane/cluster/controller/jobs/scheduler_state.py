"""A job as the scheduler sees it, with assumptions about scripts that report no steps. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from elastane.cluster.controller.jobs.accounts import compute_spending
from elastane.cluster.controller.jobs.requests import CAUSES
from elastane.cluster.controller.jobs.retries import compute_retry_time
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.nouns.cluster import Draining, Holding, JobState
from elastane.cluster.nouns.job_records import UNMEASURED_RESIZE_S, Grant, HeldWorkers
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.scheduler.speed_model import build_speed_model, select_comparable_speeds

RESTART_S = 30.0
"""The cost of a resize of an unmodified script, beyond the observed time of its stop: it starts again, loads
its snapshot and repeats the steps after that. None of this can be observed from outside."""

EXAMPLE = 8


class SchedulerJob(NamedTuple):
    """A job as the scheduler sees it.

    Args:
        wrong: the part of its record that cannot be read; empty: all of it can.
        decidable: the scheduler can decide about it.
        uncertain: it may hold devices, and its record does not show which.
    """

    state: JobState
    wrong: str = ""
    decidable: bool = True
    uncertain: bool = False


class _Place(NamedTuple):
    """The workers of a job in one pool.

    Args:
        holding: granted ones; None: there are none.
        draining: those beyond the grant; None: there are none.
        successors: expected replacements of lost ones.
    """

    holding: Holding | None
    draining: Draining | None
    successors: int


def read_scheduler_job(job: StoredJob, now_s: float) -> SchedulerJob:
    """Return the job as the scheduler sees it."""
    if job.unreadable:
        draining = _drain_all(job, now_s)
        state = _hold_back(job, draining or (), now_s)
        return SchedulerJob(state, job.unreadable, decidable=False, uncertain=draining is None)
    wrong = job.guessed
    if job.uses is None:
        wrong = f"{wrong}; using: it cannot be read".removeprefix("; ")
    return SchedulerJob(_read_state(job, now_s), wrong)


def _drain_all(job: StoredJob, now_s: float) -> tuple[Draining, ...] | None:
    """Return the devices of a job about which nothing can be decided.

    They count as draining, because its grant is unknown. None: its devices are unknown as well.
    """
    if job.state in {"queued", "paused"}:
        return ()
    if job.uses is None or (not job.uses and job.workers):
        return None
    return tuple(Draining(pool=use.pool, workers=use.devices, deadline_s=now_s) for use in job.uses)


def _hold_back(job: StoredJob, draining: tuple[Draining, ...], now_s: float) -> JobState:
    return JobState(
        number=job.number,
        # Count one worker for each device, because the devices of a worker may be unknown.
        spec=JobSpec(name=job.name, team=job.team),
        submitted_s=now_s,
        draining=draining,
        ends="cancelled",
    )


def _read_state(job: StoredJob, now_s: float) -> JobState:
    """Return the state of a readable job.

    A job uses the larger of its grant and its observed workers: workers beyond the grant drain, and hold
    their devices until an observation says that they are gone.
    """
    grant, observed = job.grant, job.observed
    is_faulty = observed.faulty_since_s is not None
    places = [
        _read_place(pool, grant, observed.held.get(pool), is_faulty=is_faulty)
        for pool in sorted(grant.workers.keys() | observed.held.keys())
    ]
    speeds, weights = select_comparable_speeds(observed.speeds, observed.weights)
    return JobState(
        number=job.number,
        spec=job.spec,
        submitted_s=job.submitted_s,
        holds=tuple(place.holding for place in places if place.holding is not None),
        draining=tuple(place.draining for place in places if place.draining is not None),
        started_s=job.admitted_s,
        resized_s=job.resized_s,
        setbacks=job.setbacks,
        promised=job.promised,
        starting_since_s=observed.starting_since_s,
        faulty_since_s=observed.faulty_since_s,
        successors=sum(place.successors for place in places),
        virtual_ranks=observed.virtual_ranks or job.spec.training.virtual_ranks or 0,
        retry_at_s=float(compute_retry_time(job.retry_at_s, now_s)),
        speeds=speeds,
        weights=weights,
        prior=observed.prior,
        resize_s=compute_resize_cost_s(job),
        unsaved_s=observed.unsaved_s,
        trained=observed.trained,
        remaining=observed.remaining,
        parameters=observed.parameters,
        spent=compute_spending(job, now_s),
        ends=CAUSES.get(job.wanted),
    )


def _read_place(pool: str, grant: Grant, held: HeldWorkers | None, *, is_faulty: bool) -> _Place:
    granted = grant.workers.get(pool, 0)
    held = held or HeldWorkers(workers=0)
    beyond = max(0, held.workers - granted)
    draining = holding = None
    if beyond:
        # Workers on nodes that go away are asked to leave first.
        leaving = min(beyond, held.leaving)
        draining = Draining(pool=pool, workers=beyond, deadline_s=grant.drain_until_s, leaving=leaving)
    missing = max(0, granted - (held.workers - held.absent))
    lost = min(missing, held.lost)
    failed = lost if is_faulty else 0
    if granted:
        holding = Holding(
            pool=pool,
            workers=granted,
            leaving=min(granted, max(0, held.leaving - beyond)),
            starting=missing - failed,
            failed=failed,
            pending=max(0, granted - held.workers),
        )
    return _Place(holding, draining, lost - failed)


def compute_resize_cost_s(job: StoredJob) -> float:
    """Return what a resize of a job costs, in seconds of the whole job's time."""
    return job.observed.resize_s + (RESTART_S if job.spec.contract == "torchrun" else 0.0)


def describe_processes(job: StoredJob) -> Iterator[str]:
    """Yield a sentence about the processes of its workers, if each has several."""
    processes, devices = job.spec.processes, job.spec.worker_devices
    if processes > 1:
        yield f"Each of its workers is {processes} processes, and has {devices} devices of one machine."


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
