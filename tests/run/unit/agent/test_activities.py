"""The agent tells what each worker does from its looks at the heartbeat file."""

from elastane.run.agent.activities import WINDOW_S, WorkerLooks
from elastane.run.agent.hang_detection import READ_EVERY_S, measure_silence, update_pulse
from elastane.run.nouns.heartbeat_file import Phase

LOOKS = round(WINDOW_S / READ_EVERY_S)


def look(*phases: int) -> WorkerLooks:
    looks = WorkerLooks()
    for phase in phases:
        looks.add(phase)
    return looks


def test_a_worker_that_was_not_seen_yet_has_no_activity() -> None:
    assert look().compute_shares() == {}


def test_the_shares_are_those_of_the_looks_the_largest_first() -> None:
    shares = look(Phase.DATA, *[Phase.COMPUTE] * 2, Phase.STEP).compute_shares()
    assert list(shares.items()) == [("compute", 50), ("load", 25), ("wait", 25)]


def test_older_looks_are_forgotten() -> None:
    assert look(*[Phase.STARTING] * 500, *[Phase.STEP] * LOOKS).compute_shares() == {"wait": 100}


def test_a_number_that_is_no_phase_is_left_out() -> None:
    assert look(77, -1, Phase.USER).compute_shares() == {"script": 100}


def test_a_silence_shows_after_two_seconds() -> None:
    pulse = update_pulse(None, 1, Phase.COMPUTE, 0.0, 10.0)
    assert measure_silence(pulse, 11.9) == 0.0
    assert measure_silence(pulse, 14.52) == 4.5
