"""Trackers have each step of a run once, whatever dies, and a tracker that fails harms no run."""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys

import pytest

from elastane.run.nouns.control import AskResize
from elastane.run.observability.run_files import read_run
from tests.run.unit.trackers.readers import (
    find_mlflow_run,
    read_mlflow,
    read_tensorboard,
    read_tensorboard_texts,
    read_wandb,
)

from .attempts import find_run_processes
from .stage import SCRIPTS, get_pid

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore")]
SCRIPT = "recording.py"
STEPS = 20


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Keep the settings of the machine's own trackers out."""
    for name in os.environ:
        if name.startswith(("MLFLOW_", "WANDB_")):
            monkeypatch.delenv(name)


def build_catch_up(run_dir):
    """Return the command that passes on what trackers have missed.

    With the usual 30 s it may end too early on a busy machine: it gives way to everything else.
    """
    return [sys.executable, "-m", "elastane.run.trackers", str(run_dir.root), "--grace=240"]


def list_expected(run):
    """Return what trackers should have of a run: its exact losses, logged values and evaluations."""
    points = {}
    for line in run.ledger:
        values = {"train/loss": float.fromhex(line.loss_hex), "train/workers": float(len(line.workers))}
        values |= {name: float("nan") if value is None else value for name, value in line.logged.items()}
        for name, value in values.items():
            points.setdefault(name, {})[line.step] = value
    for event in run.events:
        if event.kind == "evaluation":
            mean = event.detail["loss"] / event.samples
            points.setdefault("evaluation/loss", {})[event.step] = mean
    return {name: show(sorted(values.items())) for name, values in points.items()}


def show(points):
    """Return points as texts, because NaN equals nothing."""
    return [(step, float(value).hex()) for step, value in points]


def assert_has(series, run, convert=float):
    """Assert that a tracker has each point of a run once, in order, with the value of the ledger."""
    expected = list_expected(run)
    found = {name: show(points) for name, points in series.items()}
    for name, points in expected.items():
        converted = [(step, float(convert(float.fromhex(value))).hex()) for step, value in points]
        if name == "train/workers":
            # Steps that were made again after a resume had other workers the first time.
            assert [step for step, _ in found[name]] == [step for step, _ in points]
        else:
            assert found[name] == converted, name
    speeds = [step for step, _ in series["train/samples_per_s"]]
    assert speeds == [line.step for line in run.ledger]
    assert set(found) - set(expected) == {"train/samples_per_s", "train/learning_rate"}


def to_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def find_tracker_process(run_dir):
    return [pid for pid, files in find_run_processes(run_dir).items() if "trackers.lock" in files]


def read_steps(run_dir):
    """Return the steps that TensorBoard has so far."""
    found = read_tensorboard(run_dir.trackers.tensorboard) if run_dir.trackers.tensorboard.is_dir() else {}
    return [step for step, _ in found.get("train/loss", [])]


@pytest.mark.long
def test_each_tracker_has_each_step_once_whatever_dies(attempts, tmp_path):
    """A worker, the coordinator, the process of the trackers and in the end all processes are killed."""
    args = ("--paced-from=4", "--log=tensorboard")
    attempts.begin("--start=2", "--checkpoint-every=4 steps", "--log=mlflow,wandb", script=SCRIPT, args=args)
    run_dir = attempts.run_dir
    attempts.wait_until(lambda: read_steps(run_dir)[:2] == [1, 2], "TensorBoard has the first steps")
    (tracker,) = find_tracker_process(run_dir)
    os.kill(tracker, signal.SIGKILL)
    release(attempts, 4, 6)
    os.kill(get_pid(attempts.status, "coordinator"), signal.SIGKILL)
    release(attempts, 7, 8)
    attempts.ask(AskResize(workers=3))
    release(attempts, 9, 10)
    status = attempts.status
    os.kill(next(row.pid for row in status.processes if row.state == "member"), signal.SIGKILL)
    release(attempts, 11, 12)
    attempts.wait_until(attempts.list_complete_checkpoints, "there is a checkpoint")
    release(attempts, 13, 14)
    attempts.wait_until(lambda: len(read_steps(run_dir)) >= 12, "TensorBoard is ahead of the checkpoint")
    attempts.kill_everything()
    attempts.touch("gates")
    attempts.resume("--start=1")
    ended = attempts.wait_for_end()
    assert ended.outcome.code == 0, ended.describe()
    assert [line.step for line in ended.run.ledger] == list(range(1, STEPS + 1))
    assert ended.find_events("run.resumed")[0].detail["lost_steps"] > 0, ended.describe()

    # On a busy machine MLflow may need longer than the end of a run waits.
    command = build_catch_up(run_dir)
    again = subprocess.run(command, stdin=subprocess.DEVNULL, check=False, capture_output=True, text=True)
    assert again.returncode == 0, again.stdout
    assert_has(read_tensorboard(run_dir.trackers.tensorboard), ended.run, to_float32)
    texts = read_tensorboard_texts(run_dir.trackers.tensorboard)
    assert len(texts["parameters"]) == 1
    assert texts["outcome"] == ["finished"]
    # The test kills each process that has a file of the run open.
    shutil.copy(run_dir.trackers.mlflow / "mlflow.db", tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert_has(read_mlflow(uri), ended.run)
    run, _ = find_mlflow_run(uri)
    assert run.info.status == "FINISHED"
    assert run.data.params["global_batch"] == "16"
    assert_has(
        read_wandb(run_dir.trackers.wandb, json.loads(run_dir.trackers.identity.read_text())["id"]), ended.run
    )
    assert not find_run_processes(run_dir)


def release(attempts, first, last):
    """Let the run make some steps, and wait for the last of them."""
    for step in range(first, last + 1):
        attempts.touch(f"gate-{step}")
    attempts.wait_for_step(last - 1)


def test_trackers_that_fail_harm_no_run_and_catch_up_later(attempts, monkeypatch, tmp_path):
    """One cannot write its folder, the other has a server that never answers."""
    run_dir = attempts.run_dir
    run_dir.root.mkdir()
    run_dir.trackers.tensorboard.touch()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        attempts.begin("--log=tensorboard,mlflow", script=SCRIPT, args=("--paced-from=10",))
        attempts.wait_until(
            lambda: "tensorboard fails" in attempts.output and "mlflow fails" in attempts.output,
            "the user knows that both fail",
        )
        attempts.touch("gates")
        ended = attempts.wait_for_end()
    assert ended.outcome.code == 0, ended.describe()
    output = attempts.output
    assert output.count("tensorboard fails") == output.count("mlflow fails") == 1
    warnings = [event.why for event in ended.find_events("warning")]
    assert len(warnings) == 1
    assert warnings[0].startswith("the trackers do not have all metrics of the run")
    assert ended.verdict.ok

    run_dir.trackers.tensorboard.unlink()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := f"file:{tmp_path / 'store'}")
    command = build_catch_up(run_dir)
    for _ in range(2):
        again = subprocess.run(command, stdin=subprocess.DEVNULL, check=False, capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
        assert_has(read_tensorboard(run_dir.trackers.tensorboard), ended.run, to_float32)
        assert_has(read_mlflow(uri), ended.run)


def test_a_process_that_trains_alone_feeds_its_trackers_itself(tmp_path, stage):
    expected = stage.play("--log=", script=SCRIPT)
    command = [sys.executable, str(SCRIPTS / SCRIPT), "--log=tensorboard"]
    ended = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    (folder,) = (tmp_path / "tensorboard").iterdir()
    assert_has(read_tensorboard(folder), read_run(expected.run.run_dir), to_float32)
    assert read_tensorboard_texts(folder)["outcome"] == ["finished"]
    assert f"tensorboard --logdir {folder}" in ended.stderr


def test_an_unknown_tracker_is_refused_before_anything_is_written(attempts):
    attempts.begin("--log=tensorbord", script=SCRIPT)
    assert attempts.wait_for_exit() == 2
    assert "write tensorboard" in attempts.output
    assert not attempts.run_dir.root.exists()
