"""Hung is who moves less than its own rhythm promises."""

import pytest

from elastane.agent.heartbeat import Beats, is_hung, observed
from elastane.api.heartbeat import SLOT, Phase, offset

READ_S = 0.1


def watched(intervals: list[float], phase: Phase = Phase.STEP):
    """A pulse read ten times a second while the counter moves after each of these intervals."""
    pulse, now = observed(None, 0, phase, 0.0), 0.0
    for counter, interval in enumerate(intervals):
        for _ in range(round(interval / READ_S) - 1):
            now += READ_S
            pulse = observed(pulse, counter, phase, now)
        now += READ_S
        pulse = observed(pulse, counter + 1, phase, now)
    return pulse, now


def test_a_quick_worker_is_hung_after_two_seconds() -> None:
    pulse, now = watched([0.1] * 20)
    assert not is_hung(pulse, now + 1.9)
    assert is_hung(pulse, now + 2.2)


def test_a_slow_worker_is_given_twenty_of_its_own_intervals() -> None:
    pulse, now = watched([0.1] * 5 + [0.5] + [0.1] * 5)
    assert not is_hung(pulse, now + 9.0)
    assert is_hung(pulse, now + 11.0)


def test_the_first_three_intervals_do_not_count() -> None:
    pulse, now = watched([3.0, 3.0, 3.0] + [0.1] * 5)
    assert is_hung(pulse, now + 2.5)


@pytest.mark.parametrize(("phase", "patient_s", "hung_s"), [(Phase.STARTING, 119, 121), (Phase.USER, 59, 61)])
def test_outside_a_step_patience_is_long(phase, patient_s, hung_s) -> None:
    pulse = observed(None, 0, phase, 0.0)
    assert not is_hung(pulse, patient_s)
    assert is_hung(pulse, hung_s)


def test_a_finished_worker_owes_nothing() -> None:
    assert not is_hung(observed(None, 7, Phase.FINISHED, 0.0), 1e6)


def test_a_change_of_phase_is_progress() -> None:
    pulse, now = watched([0.1] * 5)
    pulse = observed(pulse, pulse.counter, Phase.USER, now + 0.1)
    assert not is_hung(pulse, now + 30)


def test_silence_while_the_agent_itself_was_held_up_proves_nothing() -> None:
    pulse, now = watched([0.1] * 5)
    pulse = observed(pulse, pulse.counter, Phase.STEP, now + 500)
    assert not is_hung(pulse, now + 500)


def test_the_file_holds_a_slot_per_worker(tmp_path) -> None:
    beats = Beats(tmp_path / "beats")
    with (tmp_path / "beats").open("r+b") as file:
        file.seek(offset(3))
        file.write(SLOT.pack(41, Phase.STEP))
    assert beats.read(3) == (41, Phase.STEP)
    assert beats.read(2) == (0, Phase.STARTING)
    beats.clear(3)
    assert beats.read(3) == (0, Phase.STARTING)
    beats.close()
