"""Pauses: the time of the first step of a generation beyond the usual step."""

import pytest

from elastane.run.coordinator.step_times import StepTimes, add_step_report, compute_pauses, take_complete
from elastane.run.nouns.control import StepReport


@pytest.fixture
def report_step(line):
    def add(times, worker, step, seconds, *, generation=1, shares=None, healthy=True):
        report = StepReport(
            worker=worker,
            line=line(step, generation, shares or {0: 4, 1: 4}),
            step_s=seconds,
            healthy=healthy,
        )
        return add_step_report(times, report)

    return add


def make_times(report_step, steps=10, seconds=0.2):
    """Return the times of a first generation of the workers 0 and 1 with ordinary steps."""
    times = StepTimes()
    for step in range(1, steps + 1):
        for worker in (0, 1):
            times = report_step(times, worker, step, seconds, healthy=step > 1)
    done, times = take_complete(times, {0, 1})
    assert [first.step for first in done] == [1]
    return times


def test_a_pause_is_the_time_beyond_the_median_of_the_usual_steps(report_step) -> None:
    times = make_times(report_step)
    times = report_step(times, 0, 11, 0.3, generation=2)
    times = report_step(times, 1, 11, 0.15, generation=2)
    (first,), times = take_complete(times, {0, 1})
    found = compute_pauses(first, times.usual)
    assert {worker: pause.ms for worker, pause in found.items()} == pytest.approx({0: 100.0, 1: 0.0})
    assert found[0].steps == pytest.approx(0.5)


def test_the_usual_step_is_scaled_for_fewer_workers(report_step) -> None:
    times = report_step(make_times(report_step), 0, 11, 0.45, generation=2, shares={0: 8})
    (first,), times = take_complete(times, {0})
    assert compute_pauses(first, times.usual)[0].ms == pytest.approx(50.0)


def test_a_joiner_has_no_pause(report_step) -> None:
    shares = {0: 3, 1: 3, 2: 2}
    times = make_times(report_step)
    for worker in (0, 1, 2):
        times = report_step(times, worker, 11, 0.9, generation=2, shares=shares, healthy=worker != 2)
    (first,), times = take_complete(times, {0, 1, 2})
    assert set(compute_pauses(first, times.usual)) == {0, 1}


def test_reports_of_dead_workers_are_not_awaited(report_step) -> None:
    times = report_step(make_times(report_step), 0, 11, 0.3, generation=2)
    assert take_complete(times, {0, 1})[0] == ()
    assert [first.generation for first in take_complete(times, {0})[0]] == [2]


def test_repeated_reports_count_once(report_step) -> None:
    times = make_times(report_step)
    assert report_step(times, 0, 10, 9.9) == times


def test_a_generation_without_steps_does_not_change_the_next_pause(report_step) -> None:
    times = make_times(report_step)
    for worker in (0, 1):
        times = report_step(times, worker, 11, 0.25, generation=4)
    (first,), times = take_complete(times, {0, 1})
    assert first.generation == 4
    assert compute_pauses(first, times.usual)[1].ms == pytest.approx(50.0)


def test_only_the_last_twenty_usual_steps_count(report_step) -> None:
    times = make_times(report_step, steps=10, seconds=5.0)
    for step in range(11, 40):
        times = report_step(times, 0, step, 0.2)
    times = report_step(times, 0, 40, 0.3, generation=2)
    (first,), times = take_complete(times, {0})
    assert compute_pauses(first, times.usual)[0].ms == pytest.approx(100.0)
