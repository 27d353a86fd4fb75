"""Jobs on agents that share no directory with each other or the controller: all is real but the machines."""

import errno
import os
import sys
import threading
import time

import pytest

from elastane.cluster.controller.agents.kept_records import RecordKeeper
from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.run.attempts.verification import verify_run
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.connections.endpoint import read_endpoint
from elastane.run.nouns.control import AskStatus
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_last_step, read_run
from tests.cluster.processes.small_cluster import SOURCES, open_cluster, read_json, submit_training
from tests.waiting import wait_until

from .own_machines import OwnMachines

pytestmark = pytest.mark.processes
STEPS = 40


@pytest.fixture
def machines(stage, tmp_path):
    paths = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
    passed = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = (*stage.build_command("elastane.cli.main"), "join", "-")
    machines = OwnMachines(command, tmp_path / "machines", passed | {"PYTHONPATH": paths})
    yield machines
    for id_ in machines.list_living():
        machines.kill(id_)


@pytest.fixture
def run_elastane(stage, tmp_path, monkeypatch, machines):
    """Run a command of a controller with one pool, on these machines."""
    with open_cluster(
        stage, tmp_path, monkeypatch, open_engine=lambda _: machines, engine_options={"home": "own"}
    ) as run:
        yield run


def count_members(run_elastane, name: str) -> int:
    held = read_json(run_elastane, "describe", name)["observed"].get("held", {})
    return sum(part["workers"] - part.get("absent", 0) for part in held.values())


@pytest.fixture
def train(run_elastane, machines, tmp_path, stage):
    """Submit a job of some workers, disturb it, and check that it has trained the bytes of one machine."""
    checkpoints = ("--checkpoint-dir", str(tmp_path / "store"), "--checkpoint-every", "10 steps")

    def train(workers, disturb):
        args = (f"--steps={STEPS}", "--seconds=0.05")
        submit_training(run_elastane, "far", "--workers", str(workers), *checkpoints, args=args)
        wait_until(
            lambda: count_members(run_elastane, "far") == workers, "they train", state=machines.read_outputs
        )
        disturb()
        state = lambda: read_json(run_elastane, "describe", "far")["state"]  # noqa: E731
        wait_until(lambda: state() == "finished", "it has finished", state=machines.read_outputs)
        run = read_run(EngineDirectories(tmp_path / "home").get_run_dir("far"))
        reference = stage.play(f"--steps={STEPS}")
        assert [line.loss for line in run.ledger] == [line.loss for line in reference.run.ledger]
        assert run.ledger[-1].digest == reference.run.ledger[-1].digest
        assert list_messages(run) == list_messages(reference.run)
        # The model is here too, with the bytes that its worker has written.
        assert verify_run(run).problems == ()
        assert not run.run_dir.endpoint.exists()
        return run

    return train


def list_messages(run) -> list[str]:
    """Return what the script has said: among others each prediction of an evaluation."""
    return [event.why for event in run.events if event.kind == "message"]


def count_events(run, kind: str) -> int:
    return sum(event.kind == kind for event in run.events)


def test_the_machine_in_charge_dies_and_the_others_train_the_same_bytes(train, machines, run_elastane):
    def disturb():
        machines.kill(machines.find_beginner())
        wait_until(lambda: len(machines.list_living()) == 2, "another agent takes its place")

    run = train(2, disturb)
    assert count_events(run, "coordinator.started") == 2
    assert count_events(run, "node.lost") == 1
    assert read_json(run_elastane, "describe", "far")["crashes"] == 0
    (worker, *_) = (process for process in run.run_dir.list_logs() if process.startswith("worker-"))
    assert "evaluated" in run_elastane("logs", "far", worker).stdout
    # No machine keeps a part of it.
    wait_until(lambda: not machines.list_living(), "all agents have ended")
    assert machines.list_own_runs() == {machines.killed[0]}


@pytest.mark.long
def test_all_machines_die_and_others_go_on_from_the_newest_checkpoint(train, machines, run_elastane):
    def disturb():
        wait_until(lambda: read_json(run_elastane, "describe", "far")["observed"]["step"] >= 15, "15 steps")
        for id_ in machines.list_living():
            machines.kill(id_)

    run = train(2, disturb)
    assert count_events(run, "run.resumed") == 1
    assert run.record.resumed.step >= 10


@pytest.mark.long
def test_records_that_are_away_cost_no_step_and_are_complete_afterwards(train, monkeypatch, tmp_path):
    away, opened = threading.Event(), RecordKeeper.open

    def open_if_there(keeper, job):
        if away.is_set():
            raise OSError(errno.EIO, "Input/output error")
        return opened(keeper, job)

    monkeypatch.setattr(RecordKeeper, "open", open_if_there)

    def ask_step():
        return ask_coordinator(RunDir(tmp_path / "home/runs/far"), AskStatus()).step

    def disturb():
        away.set()
        # The coordinator still answers by itself, and the run makes steps that are recorded nowhere else.
        begin = ask_step()
        wait_until(lambda: ask_step() >= begin + 20, "20 steps without records")
        away.clear()

    run = train(2, disturb)
    assert (count_events(run, "coordinator.started"), count_events(run, "run.resumed")) == (1, 0)
    assert not [event for event in run.events if event.kind in ("worker.died", "node.lost")]


KILLS = int(os.environ.get("ELASTANE_KILLS", "2"))
"""How often the machine in charge dies; the design was seen with 50."""


@pytest.mark.long
def test_the_machine_in_charge_dies_again_and_again(run_elastane, machines, tmp_path, stage, capsys):
    steps = 40 * KILLS
    args = (f"--steps={steps}", "--seconds=0.1")
    never = ("--checkpoint-every", "never")
    submit_training(run_elastane, "far", "--workers", "3", *never, args=args)
    run_dir, see = RunDir(tmp_path / "home/runs/far"), {"state": machines.read_outputs}
    killed_s = []
    for _ in range(KILLS):
        wait_until(lambda: count_members(run_elastane, "far") == 3, "3 workers train", **see)
        charged = read_endpoint(run_dir).node or machines.find_beginner()
        killed_s.append(time.time())
        machines.kill(charged)
        wait_until(lambda: read_newest_step(run_dir) > killed_s[-1], "steps are recorded again", **see)
    state = lambda: read_json(run_elastane, "describe", "far")["state"]  # noqa: E731
    wait_until(lambda: state() == "finished", "it has finished", **see)
    run, reference = read_run(run_dir), stage.play(f"--steps={steps}")
    assert [line.loss for line in run.ledger] == [line.loss for line in reference.run.ledger]
    assert run.ledger[-1].digest == reference.run.ledger[-1].digest
    assert verify_run(run).problems == ()
    assert (count_events(run, "coordinator.started"), count_events(run, "node.lost")) == (KILLS + 1, KILLS)
    times = [line.time for line in run.ledger]
    pauses = [
        min(after for after in times if after > at) - max(before for before in times if before <= at)
        for at in killed_s
    ]
    with capsys.disabled():
        shown = " ".join(f"{pause:.1f}" for pause in sorted(pauses))
        sys.stdout.write(f"\n{KILLS} kills, with the seconds between the steps around each: {shown}\n")


def read_newest_step(run_dir: RunDir) -> float:
    """Return when the newest step that is kept was made."""
    newest = read_last_step(run_dir)
    return 0.0 if newest is None else newest.time
