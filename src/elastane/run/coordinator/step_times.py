"""Durations of steps, and the pauses of healthy workers at a new generation."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeAlias

from elastane.run.nouns.control import StepReport
from elastane.run.nouns.membership import WorkerId
from elastane.run.nouns.records import LedgerLine

REMEMBERED_STEPS = 20


@dataclass(frozen=True, slots=True)
class OrdinaryStep:
    """An ordinary step of one worker.

    Args:
        share: the largest number of virtual ranks that any worker computed in it.
        step_s: the time from entering the step to applying it, in seconds.
    """

    generation: int
    share: int
    step_s: float


@dataclass(frozen=True, slots=True)
class FirstStep:
    """The first step of a generation, as far as reported.

    Args:
        share: the largest number of virtual ranks that any worker computed in it.
        step_s: the step time of each healthy worker that has reported it, in seconds.
    """

    step: int
    generation: int
    share: int
    workers: tuple[WorkerId, ...]
    step_s: Mapping[WorkerId, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GenerationPause:
    """The time of a step beyond the worker's usual step, in milliseconds and in usual steps."""

    ms: float
    steps: float


OrdinarySteps: TypeAlias = Mapping[WorkerId, tuple[OrdinaryStep, ...]]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Durations that distinguish pauses from ordinary steps.

    Args:
        newest: the highest generation that has committed a step.
        reported: the last step of each worker's reports, so that repeated reports count once.
        usual: the ordinary steps of each worker, oldest first, up to twice `REMEMBERED_STEPS`.
        open: the first steps that some worker has not reported yet, oldest first.
        share: the last step that a worker reported, and `find_largest_share` of it. All workers report a step
            with the same shares, so the largest is found once, not once for each worker.
    """

    newest: int = 0
    reported: Mapping[WorkerId, int] = field(default_factory=dict)
    usual: OrdinarySteps = field(default_factory=dict)
    open: tuple[FirstStep, ...] = ()
    share: tuple[int, int] = (0, 1)


def find_largest_share(line: LedgerLine) -> int:
    """Return the largest number of virtual ranks that a worker computed in this step, at least 1."""
    return (
        max((sum(stop - start for start, stop in spans) for spans in line.workers.values()), default=1) or 1
    )


def add_step_report(times: StepTimes, report: StepReport) -> StepTimes:
    """Return the durations with one more report; a worker's reports count once and in order of steps."""
    line, worker = report.line, report.worker
    if line.step <= times.reported.get(worker, 0):
        return times
    if times.share[0] != line.step:
        times = replace(times, share=(line.step, find_largest_share(line)))
    share = times.share[1]
    times = replace(times, reported={**times.reported, worker: line.step})
    if line.generation > times.newest:
        first = FirstStep(line.step, line.generation, share, tuple(sorted(line.workers)))
        times = replace(times, newest=line.generation, open=(*times.open, first))
    if any(first.step == line.step for first in times.open):
        return replace(times, open=tuple(_add_duration(first, report) for first in times.open))
    usual = OrdinaryStep(line.generation, share, report.step_s)
    recent = (*times.usual.get(worker, ()), usual)[-2 * REMEMBERED_STEPS :]
    return replace(times, usual={**times.usual, worker: recent})


def _add_duration(first: FirstStep, report: StepReport) -> FirstStep:
    if first.step != report.line.step or not report.healthy:
        return first
    return replace(first, step_s={**first.step_s, report.worker: report.step_s})


def take_complete(times: StepTimes, living: Collection[WorkerId]) -> tuple[tuple[FirstStep, ...], StepTimes]:
    """Remove and return the first steps that every living worker of that step has reported.

    A worker that has reported a later step will not report an earlier one.
    """
    done = tuple(
        first
        for first in times.open
        if all(times.reported.get(worker, 0) >= first.step for worker in first.workers if worker in living)
    )
    return done, replace(times, open=tuple(first for first in times.open if first not in done))


def compute_pauses(first: FirstStep, usual: OrdinarySteps) -> dict[WorkerId, GenerationPause]:
    """Return the pause of each healthy worker that has a usual step, in the first step of a generation.

    The usual step is the median of up to 20 last ordinary steps of the worker, in the newest earlier
    generation that has any. It is scaled by the largest number of virtual ranks per worker, after over
    before: fewer workers legitimately take longer, and more must not hide a pause. Pauses are never negative.
    """
    found = {}
    for worker, step_s in first.step_s.items():
        earlier = [step for step in usual.get(worker, ()) if step.generation < first.generation]
        if not earlier:
            continue
        before = earlier[-1].generation
        scaled = [step.step_s * first.share / step.share for step in earlier if step.generation == before]
        usual_s = median(scaled[-REMEMBERED_STEPS:])
        pause_s = max(0.0, step_s - usual_s)
        share = round(pause_s / usual_s, 4) if usual_s > 0 else 0.0
        found[worker] = GenerationPause(ms=round(1000 * pause_s, 3), steps=share)
    return found
