"""Jobs on agents that share no directory with each other or the controller: all is real but the machines."""

import os

import pytest

from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.run.attempts.verification import verify_run
from elastane.run.observability.run_files import read_run
from tests.cluster.processes.small_cluster import SOURCES, open_cluster, read_json, submit_training
from tests.waiting import WAIT_S, wait_until

from .own_machines import OwnMachines

pytestmark = pytest.mark.processes
STEPS = 60


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


def test_the_machine_in_charge_dies_and_the_others_train_the_same_bytes(
    run_elastane, machines, tmp_path, stage
):
    checkpoints = ("--checkpoint-dir", str(tmp_path / "store"), "--checkpoint-every", "20 steps")
    args = (f"--steps={STEPS}", "--seconds=0.1")
    submit_training(run_elastane, "far", "--workers", "2", *checkpoints, args=args)
    see = {"state": machines.read_outputs}
    wait_until(lambda: count_members(run_elastane, "far") == 2, "2 workers train", **see)
    run_elastane("scale", "far", "3")
    wait_until(lambda: count_members(run_elastane, "far") == 3, "3 workers train", **see)
    machines.kill(machines.find_beginner())
    wait_until(lambda: len(machines.list_living()) == 3, "another agent takes its place", **see)
    state = lambda: read_json(run_elastane, "describe", "far")["state"]  # noqa: E731
    wait_until(lambda: state() == "finished", "it has finished", **see)
    run = read_run(EngineDirectories(tmp_path / "home").get_run_dir("far"))
    reference = stage.play(f"--steps={STEPS}")
    assert [line.loss for line in run.ledger] == [line.loss for line in reference.run.ledger]
    assert run.ledger[-1].digest == reference.run.ledger[-1].digest
    assert verify_run(run).problems == ()
    assert len([event for event in run.events if event.kind == "coordinator.started"]) == 2
    assert read_json(run_elastane, "describe", "far")["crashes"] == 0
