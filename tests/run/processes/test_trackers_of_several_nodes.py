"""Trackers have each step of a run once, also after the machine on which it began has left or died."""

import os
import signal
import struct

import pytest

from elastane.run.nouns.rundir import RunDir
from tests.run.unit.trackers.readers import read_tensorboard, read_tensorboard_texts
from tests.waiting import wait_until

from .attempts import find_run_processes
from .machines import FIRST, Machines
from .stage import SHORT_SILENCE_S

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def machines(stage, tmp_path):
    with Machines(RunDir(tmp_path / "run"), stage.build_command(silence_s=SHORT_SILENCE_S)) as made:
        yield made


def read_losses(run_dir):
    found = read_tensorboard(run_dir.trackers.tensorboard) if run_dir.trackers.tensorboard.is_dir() else {}
    return found.get("train/loss", [])


def round_loss(line):
    """Return a loss as TensorBoard keeps it."""
    return struct.unpack("f", struct.pack("f", float.fromhex(line.loss_hex)))[0]


@pytest.mark.parametrize("how", ["leaves", "dies"])
def test_the_machine_in_charge_feeds_the_trackers(machines, how):
    run_dir = machines.run_dir
    machines.begin("--steps=40", "--paced-from=5", options=("--log", "tensorboard"))
    machines.wait_for_members(FIRST, 2)
    machines.join("b")
    machines.wait_for("worker.ready", "worker 100")
    machines.step_until_members("b")
    wait_until(lambda: len(read_losses(run_dir)) >= 4, "TensorBoard has the first steps")
    if how == "leaves":
        os.kill(machines.list_pids(FIRST)[0], signal.SIGHUP)
        wait_until(lambda: machines.count_members(FIRST) < 2, "the first machine leaves")
    else:
        feeders = [pid for pid, files in find_run_processes(run_dir).items() if "trackers.lock" in files]
        machines.kill(FIRST)
        machines.signal(feeders, signal.SIGKILL)
    machines.stop_pacing()
    ended = machines.end("b")
    assert ended.outcome.code == 0, ended.describe()
    expected = [(line.step, round_loss(line)) for line in ended.run.ledger]
    assert len(expected) == 40
    assert read_losses(run_dir) == expected
    assert read_tensorboard_texts(run_dir.trackers.tensorboard)["outcome"] == ["finished"]
