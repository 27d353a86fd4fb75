"""Output to a file gets progress lines at growing intervals, and events at once."""

import io
from itertools import pairwise

import msgspec
import pytest
from rich.console import Console

from elastane.cli.runs.watcher import INTERVALS_S, LogSchedule, Watcher
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord, RunSpec

DAY_S = 86_400


def test_intervals_grow_to_a_limit() -> None:
    schedule, times = LogSchedule(), []
    for now in range(DAY_S):
        if now >= schedule.due_s:
            times.append(now)
            schedule = schedule.after_line(now)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[:6] == [1, 2, 5, 10, 30, 60]
    assert gaps == sorted(gaps)
    assert gaps[-1] == INTERVALS_S[-1]
    assert len(times) < 300


@pytest.fixture
def watcher(tmp_path, monkeypatch):
    """Return a watcher that polls once a second a run that makes ten steps a second."""
    run_dir = RunDir(tmp_path)
    spec = RunSpec(name="demo", script="train.py")
    run_dir.run.write_bytes(msgspec.json.encode(RunRecord(spec=spec, created="")))
    run_dir.ledger.touch()
    run_dir.events.touch()
    clock = [0.0]
    monkeypatch.setattr("elastane.cli.runs.watcher.time.monotonic", lambda: clock[0])
    screen = io.StringIO()
    watcher = Watcher(run_dir, spec, Console(file=screen, width=200))
    return watcher, run_dir, clock, screen


def test_a_run_of_ten_minutes_prints_a_dozen_lines_and_every_event(watcher, lines) -> None:
    watcher, run_dir, clock, screen = watcher
    for second in range(600):
        clock[0] = float(second)
        with run_dir.ledger.open("ab") as ledger:
            ledger.write(msgspec.json.encode(lines(second + 1)) + b"\n")
        if second == 400:
            died = EventLine(time=2.0, kind="worker.died", who="worker 1", why="exit code 9")
            run_dir.events.write_bytes(msgspec.json.encode(died) + b"\n")
        watcher.look()
        if second == 400:
            assert "worker.died  worker 1" in screen.getvalue(), "an event waits for no interval"
    watcher.close(update=True)
    shown = screen.getvalue().splitlines()
    assert len(shown) <= 14
    assert shown[0].startswith("step 1 ")
    assert shown[-1].startswith("step 600")
