"""A run ends at once with an error when its directory is removed, moved or replaced, and writes no other."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_run
from tests.waiting import WAIT_S, wait_until

from .attempts import find_run_processes
from .stage import SCRIPTS

pytestmark = pytest.mark.processes

STEPS_OF_A_SECOND = 300


@pytest.fixture
def started(stage, tmp_path):
    """Start `elastane run` with frequent checkpoints; return its process and its directory."""
    directory = tmp_path / "run"
    process = subprocess.Popen(
        [
            *stage.build_command("elastane.cli.main"),
            "run",
            "--workers=2",
            "--checkpoint-every=20 steps",
            f"--run-dir={directory}",
            str(SCRIPTS / "debugged.py"),
            "--steps=100000",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "300"},
    )
    with process:
        try:
            wait_until(lambda: any(directory.glob("checkpoints/*/COMPLETE")), "a checkpoint exists")
            yield process, directory
        finally:
            process.kill()


def read_error(process):
    out, error = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1, out + error
    assert "means:" in error
    assert "do:" in error
    assert "Traceback" not in out + error
    return error


def list_worker_pids(directory: Path) -> set[int]:
    events = read_run(RunDir(directory)).events
    return {int(event.detail["pid"]) for event in events if event.kind == "worker.started"}


def test_a_run_ends_when_its_directory_is_removed(started):
    process, directory = started
    workers = list_worker_pids(directory)
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)
    error = read_error(process)
    assert f"{directory} was removed" in error or f"{directory}/" in error
    assert not directory.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_a_run_ends_when_its_directory_is_moved(started, tmp_path):
    process, directory = started
    elsewhere = tmp_path / "elsewhere"
    directory.rename(elsewhere)
    error = read_error(process)
    assert f"moved to {elsewhere}" in error
    assert f"elastane run --resume {elsewhere}" in error
    assert not directory.exists()
    run = read_run(RunDir(elsewhere))
    assert [event.kind for event in run.events if event.kind.startswith("run.")] == [
        "run.started",
        "run.failed",
    ]
    assert str(elsewhere) in run.events[-1].why
    assert [line.step for line in run.ledger] == list(range(1, len(run.ledger) + 1))


def test_a_run_ends_when_another_directory_replaces_its_own(started, tmp_path):
    process, directory = started
    another = tmp_path / "another"
    another.mkdir()
    for name in ("run.json", "endpoint.json", "lock", "ledger.jsonl", "events.jsonl"):
        (another / name).write_text("another run's\n")
    before = {path.name: path.read_bytes() for path in another.iterdir()}
    elsewhere = RunDir(directory.rename(tmp_path / "elsewhere"))
    another.rename(directory)
    assert "another directory is in its place" in read_error(process)
    wait_until(lambda: not find_run_processes(elsewhere), "no process of the run is left")
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_a_run_ends_when_its_ledger_is_removed(started):
    process, directory = started
    ledger = directory / "ledger.jsonl"
    # The agent looks for it several times a second, so it has seen it after a few more steps.
    last = ledger.read_bytes().count(b"\n") + STEPS_OF_A_SECOND
    wait_until(lambda: ledger.read_bytes().count(b"\n") >= last, f"step {last} is made")
    ledger.unlink()
    assert "ledger.jsonl was removed" in read_error(process)
    assert not (directory / "ledger.jsonl").exists()
