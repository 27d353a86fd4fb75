"""The speed of a job with each number of workers, measured from its ledger."""

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastane.cluster.engines.pace import HALF_WEIGHT_S, Pace, add_event_to_pace, add_line_to_pace
from elastane.run.nouns.records import EventLine, LedgerLine, Samples


def make_line(step: int, workers: int, seconds: float, samples: int = 64) -> LedgerLine:
    return LedgerLine(
        step=step,
        generation=1,
        workers={worker: ((worker, worker + 1),) for worker in range(workers)},
        samples=Samples(0, 0, samples, samples, "0"),
        loss=0.5,
        loss_hex="",
        time=float(step),
        seconds={"step": seconds},
    )


def fold_lines(*lines: LedgerLine) -> Pace:
    pace = Pace()
    for each in lines:
        pace = add_line_to_pace(pace, each)
    return pace


def test_each_number_of_workers_has_its_own_speed() -> None:
    pace = fold_lines(make_line(1, 1, 2.0), make_line(2, 1, 2.0), make_line(3, 2, 1.0))
    assert pace.speeds[1].samples_per_s == pytest.approx(32)
    assert pace.speeds[2].samples_per_s == pytest.approx(64)
    assert (pace.step, pace.samples) == (3, 64)


def test_old_steps_no_longer_decide_the_speed() -> None:
    slow = [make_line(step, 1, 10.0) for step in range(1, 50)]
    fast = [make_line(step, 1, 1.0) for step in range(50, 250)]
    assert fold_lines(*slow, *fast).speeds[1].samples_per_s == pytest.approx(64, rel=0.01)


MINUTE_S = 60


def measure_speed(*stretches: tuple[float, float], step_s: float = 0.5) -> float:
    """Return the speed after stretches; each lasts some seconds, with steps of a multiple of ``step_s``."""
    lines, time = [], 0.0
    for lasts_s, slower in stretches:
        until = time + lasts_s
        while time < until:
            time += step_s * slower
            lines.append(make_line(len(lines) + 1, 2, step_s * slower))
    return fold_lines(*lines).speeds[2].samples_per_s


@settings(max_examples=25)
@given(
    before_s=st.integers(60, 900),
    slower=st.floats(1.5, 20.0),
    step_s=st.integers(1, 1200).map(lambda hundredths: hundredths / 100),
)
@example(before_s=60, slower=20.0, step_s=12.0)
@example(before_s=67, slower=3.0, step_s=0.5)
def test_one_noisy_minute_does_not_change_the_speed(before_s: int, slower: float, step_s: float) -> None:
    speed = measure_speed((before_s, 1.0), (MINUTE_S, slower), step_s=step_s)
    assert speed == pytest.approx(64 / step_s, rel=0.02)


def test_a_noisy_minute_after_a_change_of_size_is_skipped() -> None:
    assert fold_lines(*[make_line(step, 2, 1.0) for step in range(1, 110)]).speeds[2].is_brief
    speed = measure_speed((MINUTE_S, 4.0), (2 * MINUTE_S - MINUTE_S + 8, 1.0))
    assert speed == pytest.approx(128, rel=0.02)


@pytest.mark.parametrize("slower", [0.5, 2.0])
def test_a_lasting_change_of_speed_shows_within_minutes(slower: float) -> None:
    speed = measure_speed((1800, 1.0), (4 * MINUTE_S, slower))
    assert speed == pytest.approx(128 / slower, rel=0.02)


def test_one_stalled_step_does_not_make_a_job_of_fast_steps_look_slow() -> None:
    fast = [make_line(step, 1, 0.01) for step in range(1, 1500)]
    assert fold_lines(*fast, make_line(1500, 1, 1.0)).speeds[1].samples_per_s == pytest.approx(6400, rel=0.12)


def test_an_old_speed_of_another_number_of_workers_is_kept_with_a_lower_weight() -> None:
    lines = [make_line(step, 2, 1.0) for step in range(1, 200)]
    pace = fold_lines(*lines, *[make_line(step, 1, 1.0) for step in range(200, 400)])
    assert pace.weights == (1.0, 1.0)
    late = fold_lines(*lines, *[make_line(200 + int(HALF_WEIGHT_S) + step, 1, 1.0) for step in range(200)])
    assert late.weights == (1.0, 0.5)
    assert late.ordered_speeds == pace.ordered_speeds


def test_a_brief_speed_has_no_weight() -> None:
    lines = [make_line(step, 2, 1.0) for step in range(1, 200)]
    assert fold_lines(*lines, make_line(200, 3, 1.0)).weights == (1.0, 0.0)


def test_a_step_of_unknown_duration_does_not_count() -> None:
    pace = fold_lines(make_line(1, 1, 0.0), make_line(2, 1, float("nan")))
    assert pace.speeds == {}
    assert pace.step == 2


def test_the_short_last_step_of_an_epoch_is_not_the_global_batch() -> None:
    assert fold_lines(make_line(1, 1, 1.0, samples=64), make_line(2, 1, 1.0, samples=10)).samples == 64


def test_a_resize_costs_the_longest_pause_of_a_healthy_worker() -> None:
    pace = Pace()
    assert pace.resize_s is None
    for longest in (100.0, 300.0):
        event = EventLine(time=1.0, kind="generation.started", pause_ms={0: 20.0, 1: longest})
        pace = add_event_to_pace(pace, event)
    pace = add_event_to_pace(pace, EventLine(time=2.0, kind="checkpoint.saved"))
    assert pace.resize_s == pytest.approx(0.2)
    assert pace.saved_s == 2.0


def test_the_recent_loss_is_a_mean_over_twenty_consecutive_steps() -> None:
    def fold_losses(*losses: tuple[int, float | None]) -> Pace:
        lines = (msgspec.structs.replace(make_line(step, 1, 1.0), loss=loss) for step, loss in losses)
        return fold_lines(*lines)

    steps = [(step, float(step)) for step in range(1, 22)]
    assert fold_losses(*steps[:19]).recent_loss is None
    assert fold_losses(*steps[:20]).recent_loss == sum(range(1, 21)) / 20
    assert fold_losses(*steps).recent_loss == sum(range(2, 22)) / 20
    assert fold_losses(*steps[:10], (11, None), *steps[11:]).recent_loss is None
    assert fold_losses(*steps[:10], (11, float("nan")), *steps[11:]).recent_loss is None
    # Repeated after a resume.
    assert fold_losses(*steps, *steps[4:10]).recent_loss is None
