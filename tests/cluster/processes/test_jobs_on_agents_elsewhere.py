"""Jobs on agents that an engine starts: all is real, but the engine starts processes of this machine."""

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastane.cluster.controller.agents.kept_records import RecordKeeper
from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.run.agent.head_start import HEAD_START
from elastane.run.attempts.verification import verify_run
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.connections.endpoint import read_endpoint
from elastane.run.nouns.control import AskStatus
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_last_step, read_run
from tests.cluster.engines.job_contract import DIGEST_STEP, JobContract
from tests.run.processes.stage import SCRIPTS
from tests.run.processes.worlds import read_notes
from tests.waiting import WAIT_S, wait_until

from .process_engine import AgentProcesses, ProcessEngine
from .small_cluster import (
    SOURCES,
    TRAINING,
    assert_same_bytes,
    open_cluster,
    read_json,
    submit_training,
    wait_for_members,
    wait_for_state,
)

pytestmark = [pytest.mark.processes, pytest.mark.early]
STEPS = 60


@pytest.fixture
def home_option() -> str:
    """The option of the engine: ``shared``, or ``own`` if its machines share no directory."""
    return "shared"


@pytest.fixture
def engine(stage, tmp_path, home_option) -> Iterator[AgentProcesses]:
    command = stage.build_command("elastane.cli.main")
    engine = AgentProcesses(command, tmp_path / "agents", own_homes=home_option == "own")
    yield engine
    engine.end()


@pytest.fixture
def pool_options() -> dict[str, str]:
    """The options of the pool."""
    return {}


@pytest.fixture
def run_elastane(stage, tmp_path, monkeypatch, engine, home_option, pool_options) -> Iterator[Callable]:
    with open_cluster(
        stage,
        tmp_path,
        monkeypatch,
        open_engine=lambda cluster: ProcessEngine(engine, cluster),
        options=pool_options,
        engine_options={"home": home_option},
    ) as run:
        yield run


@pytest.fixture
def read_training(tmp_path) -> Callable:
    return lambda name: read_run(EngineDirectories(tmp_path / "home").get_run_dir(name))


class ProcessJobSite:
    """A `JobSite`: the parts of its job are its agents, of which each may be killed."""

    notifies = False

    def __init__(self, run_elastane: Callable, home: Path, engine: AgentProcesses) -> None:
        self.run_elastane, self.home, self._engine = run_elastane, home, engine
        self.list_parts, self.take_away = engine.list_living, engine.kill

    def read_logs(self) -> dict[str, str]:
        return {id_: self._engine.read_log(id_) for id_ in self._engine.agents}


class TestJobsOnAgents(JobContract):
    """The contract of all engines."""

    @pytest.fixture
    def site(self, run_elastane, tmp_path, engine) -> ProcessJobSite:
        return ProcessJobSite(run_elastane, tmp_path / "home", engine)


@pytest.mark.long
@pytest.mark.parametrize("pool_options", [{"workersPerAgent": "2"}])
def test_agents_of_two_workers_train_the_same_bytes(
    run_elastane, engine, read_training, stage, tmp_path, pool_options
):
    job = tmp_path / "job.yaml"
    job.write_text(
        f"command: [python, {TRAINING}, --steps=100000, --seconds=0.1]\n"
        f"env: {{PYTHONPATH: {SOURCES}}}\n"
        "elasticPolicy: {minReplicas: 2, maxReplicas: 4, replicaIncrementStep: 2}\n"
    )
    run_elastane("submit", job, "--name", "far")
    wait_for_members(run_elastane, "far", 4, engine.list_living)
    assert list(engine.held.values()) == [2, 2]
    engine.kill(engine.list_living()[-1])
    wait_until(lambda: len(engine.agents) == 3, "another agent takes its place")
    wait_for_members(run_elastane, "far", 4, engine.list_living)
    run_elastane("scale", "far", "2")
    wait_for_members(run_elastane, "far", 2, engine.list_living)
    wait_until(lambda: len(engine.list_living()) == 1, "an agent has left as a whole")
    run_dir = read_training("far").run_dir
    steps = read_last_step(run_dir).step + DIGEST_STEP
    wait_until(lambda: read_last_step(run_dir).step >= steps, "a digest is in the ledger")
    run_elastane("cancel", "far", "--wait")
    run = read_training("far")
    assert_same_bytes(run, stage.play(f"--steps={len(run.ledger)}").run)
    assert {len(line.workers) for line in run.ledger} >= {2, 4}
    assert read_json(run_elastane, "describe", "far")["crashes"] == 0


@pytest.mark.long
@pytest.mark.parametrize("pool_options", [{"workersPerAgent": "2"}])
def test_an_unmodified_script_has_all_its_workers_in_one_agent(run_elastane, engine, tmp_path, pool_options):
    folder = tmp_path / "files"
    folder.mkdir()
    script = SCRIPTS / "torchrun" / "elastic_tutorial.py"
    where = ("--env", f"PYTHONPATH={SOURCES}", "--contract", "torchrun", "--workers", "2")
    run_elastane("submit", script, "--name", "script", *where, "--", folder, "--epochs=3")
    wait_for_state(run_elastane, "script", "finished", engine.list_living)
    assert read_notes(folder)[-1] == "epoch 2 of 2"
    assert list(engine.held.values()) == [2]


@pytest.mark.parametrize(
    ("how", "home_option"),
    [
        ("notice", "shared"),
        pytest.param("death", "own", marks=pytest.mark.long),
        pytest.param("death", "shared", marks=pytest.mark.long),
        pytest.param("notice", "own", marks=pytest.mark.long),
    ],
)
def test_a_job_goes_on_without_the_machine_on_which_it_began(
    run_elastane, engine, read_training, play_reference, tmp_path, how, home_option
):
    store = ("--checkpoint-dir", str(tmp_path / "store"))
    args = (f"--steps={STEPS}", "--seconds=0.05")
    submit_training(run_elastane, "moved", "--workers", "2", *store, args=args)
    wait_for_members(run_elastane, "moved", 2)
    first = find_beginner(engine)
    if how == "death":
        engine.kill(first)
    else:
        engine.agents[first].terminate()
        assert engine.agents[first].wait(WAIT_S) == 0, engine.read_log(first)
    wait_for_state(run_elastane, "moved", "finished")
    run = read_training("moved")
    assert [line.step for line in run.ledger] == [*range(1, STEPS + 1)]
    # It was one attempt, without a stop.
    assert {event.kind for event in run.events}.isdisjoint({"stop.requested", "run.stopped", "run.resumed"})
    assert read_json(run_elastane, "describe", "moved")["crashes"] == 0
    # The model and the logs are in the directory of the controller too.
    assert verify_run(run).problems == ()
    assert list_messages(run) == list_messages(play_reference(STEPS).run)
    (log, *_) = (process for process in run.run_dir.list_logs() if process.startswith("worker-"))
    run_elastane("logs", "moved", log)
    assert not run.run_dir.endpoint.exists()
    wait_until(lambda: not engine.list_living(), "all agents have ended")
    assert engine.list_own_runs() == ([first] if (how, home_option) == ("death", "own") else [])


def find_beginner(engine: AgentProcesses) -> str:
    """Return the agent that has begun the newest attempt."""
    return next(id_ for id_ in reversed(engine.agents) if "begins with" in engine.read_log(id_))


def list_messages(run) -> list[str]:
    """Return what the script has said: among others each prediction of an evaluation."""
    return [event.why for event in run.events if event.kind == "message"]


@pytest.mark.parametrize("home_option", ["own"])
def test_a_job_that_is_paused_goes_on_from_its_checkpoint_on_other_agents(
    run_elastane, engine, read_training, tmp_path, home_option
):
    store = ("--checkpoint-dir", str(tmp_path / "store"))
    options = ("--workers", "2", "--checkpoint-every", "5 steps", *store)
    submit_training(run_elastane, "paused", *options, args=(f"--steps={STEPS}", "--seconds=0.05"))
    wait_for_members(run_elastane, "paused", 2)
    run_elastane("pause", "paused", "--wait")
    assert [process.wait(WAIT_S) for process in engine.agents.values()] == [0, 0]
    run_elastane("resume", "paused")
    wait_for_state(run_elastane, "paused", "finished")
    run = read_training("paused")
    assert [line.step for line in run.ledger] == [*range(1, STEPS + 1)]
    assert len(engine.agents) == 4
    assert [event.kind for event in run.events].count("run.resumed") == 1


def test_a_job_whose_script_fails_says_so(run_elastane, engine):
    submit_training(run_elastane, "wrong", args=("--no-such-option",))
    wait_for_state(run_elastane, "wrong", "failed")
    assert "unrecognized arguments: --no-such-option" in run_elastane("explain", "wrong").stdout


@pytest.mark.long
def test_a_job_says_that_a_machine_has_no_torch(stage, tmp_path, monkeypatch):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    monkeypatch.setenv("PYTHONPATH", f"{hidden}{os.pathsep}{SOURCES}")
    engine = AgentProcesses((sys.executable, "-P", "-m", "elastane"), tmp_path / "agents")
    try:
        with open_cluster(
            stage, tmp_path, monkeypatch, open_engine=lambda cluster: ProcessEngine(engine, cluster)
        ) as run_elastane:
            submit_training(run_elastane, "bare")
            wait_for_state(run_elastane, "bare", "failed")
            assert "a job on this machine needs torch" in run_elastane("explain", "bare").stdout
            wait_until(lambda: not engine.list_living(), "it holds nothing")
    finally:
        engine.end()


def test_the_fork_server_of_an_agent_imports_torch_while_the_agent_arrives(
    stage, tmp_path, monkeypatch, play_reference
):
    # As jobs here have it: another environment would need another process.
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    engine = AgentProcesses((sys.executable, "-P", "-m", "elastane"), tmp_path / "agents", umask=0)
    try:
        with open_cluster(
            stage, tmp_path, monkeypatch, open_engine=lambda cluster: ProcessEngine(engine, cluster)
        ) as run_elastane:
            submit_training(run_elastane, "far", args=("--steps=8", "--paced-from=4"))
            wait_for_members(run_elastane, "far", 1)
            run_dir = EngineDirectories(tmp_path / "home").get_run_dir("far")
            rows = ask_coordinator(run_dir, AskStatus(), WAIT_S).processes
            (server,) = (row.pid for row in rows if row.role == "fork-server")
            assert HEAD_START.encode() in Path(f"/proc/{server}/cmdline").read_bytes().split(b"\0")
            # Its later output goes where the run expects it, and so do its workers.
            assert Path(f"/proc/{server}/fd/2").readlink() == run_dir.log("fork-server")
            assert Path(f"/proc/{server}/cwd").samefile(Path(f"/proc/{engine.find_only().pid}/cwd"))
            # The umask of the engine would let all users write to the files of workers.
            assert "Umask:\t0022\n" in Path(f"/proc/{server}/status").read_text()
            (run_dir.root / "gates").touch()
            wait_for_state(run_elastane, "far", "finished")
        assert engine.find_only().wait(WAIT_S) == 0
        assert read_run(run_dir).ledger[-1].digest == play_reference(8).run.ledger[-1].digest
    finally:
        engine.end()


# -- machines that share no directory ------------------------------------------------------------------------


@pytest.mark.parametrize("home_option", ["own"])
def test_a_job_without_a_place_for_its_checkpoints_is_refused(run_elastane, engine, home_option):
    submit_training(run_elastane, "nowhere", args=(f"--steps={STEPS}",))
    wait_for_state(run_elastane, "nowhere", "failed")
    assert "names no place for its checkpoints" in run_elastane("explain", "nowhere").stdout


@pytest.mark.long
@pytest.mark.parametrize("home_option", ["own"])
def test_all_machines_die_and_others_go_on_from_the_newest_checkpoint(
    run_elastane, engine, read_training, play_reference, tmp_path, home_option
):
    options = ("--workers", "2", "--checkpoint-every", "5 steps", "--checkpoint-dir", str(tmp_path / "store"))
    submit_training(run_elastane, "far", *options, args=(f"--steps={STEPS}", "--seconds=0.05"))
    wait_for_members(run_elastane, "far", 2)
    wait_until(lambda: run_elastane.read_job("far").observed.step >= 15, "15 steps")
    for id_ in engine.list_living():
        engine.kill(id_)
    wait_for_state(run_elastane, "far", "finished")
    run, reference = read_training("far"), play_reference(STEPS)
    assert run.record.resumed.step >= 5
    assert [line.loss for line in run.ledger] == [line.loss for line in reference.run.ledger]
    assert run.ledger[-1].digest == reference.run.ledger[-1].digest
    assert verify_run(run).problems == ()


@pytest.mark.long
@pytest.mark.parametrize("home_option", ["own"])
def test_records_that_are_away_cost_no_step_and_are_complete_afterwards(
    run_elastane, engine, read_training, monkeypatch, tmp_path, home_option
):
    away, opened = threading.Event(), RecordKeeper.open

    def open_if_there(keeper, job):
        if away.is_set():
            raise OSError(errno.EIO, "Input/output error")
        return opened(keeper, job)

    monkeypatch.setattr(RecordKeeper, "open", open_if_there)
    never = ("--checkpoint-every", "never")
    submit_training(run_elastane, "far", "--workers", "2", *never, args=(f"--steps={STEPS}", "--seconds=0.1"))
    wait_for_members(run_elastane, "far", 2)

    def ask_step():
        return ask_coordinator(RunDir(tmp_path / "home/runs/far"), AskStatus()).step

    away.set()
    begin = ask_step()
    wait_until(lambda: ask_step() >= begin + 20, "20 steps that are kept nowhere else")
    away.clear()
    wait_for_state(run_elastane, "far", "finished")
    run = read_training("far")
    assert [line.step for line in run.ledger] == [*range(1, STEPS + 1)]
    assert verify_run(run).problems == ()
    kinds = [event.kind for event in run.events]
    assert (kinds.count("coordinator.started"), kinds.count("run.resumed")) == (1, 0)
    assert {"worker.died", "node.lost"}.isdisjoint(kinds)


@pytest.mark.long
@pytest.mark.parametrize("home_option", ["own"])
def test_a_job_begins_from_the_checkpoints_of_another_one(
    run_elastane, engine, read_training, stage, tmp_path, home_option
):
    half, first = STEPS // 2, tmp_path / "first"
    options = ("--seed", "7", "--checkpoint-dir", str(first))
    submit_training(run_elastane, "first", *options, args=(f"--steps={half}",))
    wait_for_state(run_elastane, "first", "finished")
    options = ("--from", first.as_uri(), "--checkpoint-dir", str(tmp_path / "second"), "--workers", "2")
    submit_training(run_elastane, "second", *options, args=(f"--steps={STEPS}", "--seconds=0.05"))
    wait_for_members(run_elastane, "second", 2)
    for id_ in engine.list_living():
        engine.kill(id_)
    wait_for_state(run_elastane, "second", "finished")
    run, reference = read_training("second"), stage.play(f"--steps={STEPS}", seed=7)
    assert [line.step for line in run.ledger] == [*range(half + 1, STEPS + 1)]
    assert [line.loss for line in run.ledger] == [line.loss for line in reference.run.ledger][half:]
    assert run.ledger[-1].digest == reference.run.ledger[-1].digest
    assert (run.record.origin.run, run.record.origin.step) == ("first", half)
    assert verify_run(run).problems == ()


KILLS = int(os.environ.get("ELASTANE_KILLS", "2"))
"""How often the machine in charge dies; 50 were seen."""


@pytest.mark.long
@pytest.mark.parametrize("home_option", ["own", "shared"])
def test_the_machine_in_charge_dies_again_and_again(
    run_elastane, engine, read_training, stage, tmp_path, capsys, monkeypatch, home_option
):
    # Machines that die soon after they have joined are replaced ever more rarely.
    monkeypatch.setattr("elastane.cluster.controller.agents.decisions.YOUNG_S", 0.0)
    # More than are made between two kills, of which each is followed by the start of an agent.
    steps = 30 * KILLS
    args = (f"--steps={steps}", "--seconds=0.1")
    submit_training(run_elastane, "far", "--workers", "3", "--checkpoint-every", "never", args=args)
    run_dir, killed_s = RunDir(tmp_path / "home/runs/far"), []
    wait_until(lambda: read_last_step(run_dir), "a step is recorded")
    for _ in range(KILLS):
        wait_for_members(run_elastane, "far", 3)
        charged = read_endpoint(run_dir).node or find_beginner(engine)
        killed_s.append(time.time())
        engine.kill(charged)
        wait_until(lambda: read_last_step(run_dir).time > killed_s[-1], "steps are recorded again")
    for step in range(30, steps + 1, 30):
        wait_until(lambda step=step: read_last_step(run_dir).step >= step, f"step {step} is recorded")
    wait_for_state(run_elastane, "far", "finished")
    run, reference = read_training("far"), stage.play(f"--steps={steps}")
    assert [line.loss for line in run.ledger] == [line.loss for line in reference.run.ledger]
    assert run.ledger[-1].digest == reference.run.ledger[-1].digest
    assert verify_run(run).problems == ()
    kinds = [event.kind for event in run.events]
    assert (kinds.count("coordinator.started"), kinds.count("node.lost")) == (KILLS + 1, KILLS)
    times = [line.time for line in run.ledger]
    pauses = sorted(
        min(after for after in times if after > at) - max(before for before in times if before <= at)
        for at in killed_s
    )
    with capsys.disabled():
        shown = " ".join(f"{pause:.1f}" for pause in pauses)
        sys.stdout.write(f"\n{KILLS} kills, with the seconds between the steps around each: {shown}\n")
