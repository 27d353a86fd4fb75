"""A worker hangs if its heartbeats stop for longer than its own intervals allow."""

import importlib
import sys

import pytest

from elastane.run.agent.hang_detection import (
    HeartbeatFile,
    Pulse,
    is_awaiting_data,
    is_hung,
    is_importing,
    update_pulse,
)
from elastane.run.nouns.heartbeat_file import SLOT, Phase, compute_slot_offset
from elastane.run.worker.heartbeat import Heartbeat, stop_beats_at_imports


def make_pulse(phase, rhythm_s=0.0, now=0.0):
    return update_pulse(None, 1, phase, rhythm_s, now)


MOVING = (Pulse(9, Phase.STEP, 0.1, moved_s=1e7, read_s=1e7),)
"""A peer that waits for the worker: it goes on moving."""


def test_a_quick_worker_is_hung_after_two_seconds() -> None:
    assert not is_hung(make_pulse(Phase.COMPUTE, 0.05), 1.9, MOVING)
    assert is_hung(make_pulse(Phase.COMPUTE, 0.05), 2.2, MOVING)


def test_a_slow_worker_is_hung_after_twenty_of_its_usual_intervals() -> None:
    assert not is_hung(make_pulse(Phase.COMPUTE, 3.0), 59.0, MOVING)
    assert is_hung(make_pulse(Phase.COMPUTE, 3.0), 61.0, MOVING)


def test_a_worker_that_has_not_computed_yet_is_hung_after_two_minutes() -> None:
    assert not is_hung(make_pulse(Phase.COMPUTE), 119.0, MOVING)
    assert is_hung(make_pulse(Phase.COMPUTE), 121.0, MOVING)


@pytest.mark.parametrize(
    ("phase", "patient_s", "hung_s"),
    [(Phase.STARTING, 1799, 1801), (Phase.USER, 59, 61), (Phase.DATA, 599, 601)],
)
def test_a_worker_in_another_phase_is_hung_after_the_limit_of_that_phase(phase, patient_s, hung_s) -> None:
    assert not is_hung(make_pulse(phase), patient_s, MOVING)
    assert is_hung(make_pulse(phase), hung_s, MOVING)


def test_a_worker_is_reported_as_waiting_for_data_long_before_it_counts_as_hung() -> None:
    assert not is_awaiting_data(make_pulse(Phase.DATA, 0.01), 4.9)
    assert is_awaiting_data(make_pulse(Phase.DATA, 0.01), 5.1)
    assert not is_awaiting_data(make_pulse(Phase.COMPUTE, 10.0), 5.1)


def test_a_worker_imports_if_it_has_begun_an_import_lately() -> None:
    assert is_importing(make_pulse(Phase.STARTING), 1.9)
    assert not is_importing(make_pulse(Phase.STARTING), 2.1)
    assert not is_importing(make_pulse(Phase.USER), 1.0)
    assert not is_importing(update_pulse(None, 0, Phase.STARTING, 0.0, 0.0), 1.0)


def test_each_import_is_a_heartbeat_until_the_script_joins(tmp_path, monkeypatch) -> None:
    beats = HeartbeatFile(tmp_path / "beats")
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("first", "second"):
        (tmp_path / f"imported_{name}.py").touch()
    Heartbeat(tmp_path / "beats", 3).beat_at_imports()
    importlib.import_module("imported_first")
    assert beats.read(3) == (1, Phase.STARTING, pytest.approx(0.0, abs=60))
    stop_beats_at_imports()
    importlib.import_module("imported_second")
    assert beats.read(3)[0] == 1
    beats.close()


def test_a_finished_worker_never_counts_as_hung() -> None:
    assert not is_hung(make_pulse(Phase.FINISHED), 1e6, MOVING)


@pytest.mark.parametrize(
    "peers",
    [
        pytest.param((), id="none"),
        pytest.param((make_pulse(Phase.STARTING, now=1.0),), id="one that starts"),
        pytest.param((make_pulse(Phase.COMPUTE, 0.05),), id="one as silent"),
    ],
)
def test_a_worker_has_minutes_while_no_peer_moves_either(peers) -> None:
    silent = make_pulse(Phase.COMPUTE, 0.05)
    assert not is_hung(silent, 119.0, peers)
    assert is_hung(silent, 121.0, peers)
    assert is_hung(silent, 2.2, peers, elsewhere=True)


def test_any_heartbeat_is_progress() -> None:
    moved = update_pulse(make_pulse(Phase.STEP, 0.1), 2, Phase.STEP, 0.1, 0.9)
    assert not is_hung(moved, 2.8, MOVING)
    assert is_hung(update_pulse(moved, 2, Phase.STEP, 0.1, 1.8), 3.0, MOVING)


def test_silence_while_the_agent_itself_was_stalled_does_not_count() -> None:
    assert not is_hung(update_pulse(make_pulse(Phase.STEP, 0.1), 1, Phase.STEP, 0.1, 500.0), 500.0, MOVING)


def test_the_file_holds_a_slot_per_worker(tmp_path) -> None:
    beats = HeartbeatFile(tmp_path / "beats")
    with (tmp_path / "beats").open("r+b") as file:
        file.seek(compute_slot_offset(3))
        file.write(SLOT.pack(41, Phase.STEP, 0.1))
    assert beats.read(3) == (41, Phase.STEP, 0.1)
    assert beats.read(2) == (0, Phase.STARTING, 0.0)
    beats.clear(3)
    assert beats.read(3) == (0, Phase.STARTING, 0.0)
    beats.close()
