"""Jobs from the command line to their last step: real store, scheduler, loop, API, engine and workers."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.common.errors import NoCoordinator, NoSuchRun
from elastane.common.process_identity import read_start_time
from elastane.run.agent.presence import list_present_processes
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.nouns.control import AskStatus
from elastane.run.observability.run_files import read_run
from tests.cluster.engines.job_contract import JobContract
from tests.run.unit.trackers.readers import read_tensorboard
from tests.waiting import wait_until

from .small_cluster import SOURCES, TRAINING, open_cluster, read_json, submit_training

pytestmark = [pytest.mark.processes, pytest.mark.early]


@pytest.fixture
def run_elastane(stage, tmp_path, monkeypatch) -> Iterator[Callable]:
    with open_cluster(stage, tmp_path, monkeypatch) as run:
        yield run


class LocalSite:
    """A `JobSite`: the parts of its job are the workers, of which each may die."""

    notifies = False

    def __init__(self, run_elastane: Callable, home: Path) -> None:
        self.run_elastane, self.home = run_elastane, home
        self._run_dir = EngineDirectories(home).get_run_dir("far")

    def list_parts(self) -> list[int]:
        try:
            answer = ask_coordinator(self._run_dir, AskStatus())
        except (NoCoordinator, NoSuchRun):
            # All that is left of the job counts.
            return sorted(set(list_present_processes(self._run_dir)) - {os.getpid()})
        workers = [process.pid for process in answer.processes if process.role == "worker"]
        return sorted(workers, key=lambda pid: read_start_time(pid) or 0)

    def take_away(self, part: int) -> None:
        os.kill(part, signal.SIGKILL)

    def read_logs(self) -> str:
        log = self._run_dir.log("agent")
        return log.read_text() if log.exists() else ""


class TestJobsOnThisMachine(JobContract):
    """The contract of all engines."""

    @pytest.fixture
    def site(self, run_elastane, tmp_path) -> LocalSite:
        return LocalSite(run_elastane, tmp_path / "home")


def find_trained_sizes(run_elastane, name: str) -> set[int]:
    """Return the numbers of workers with which a job has been observed to train."""
    return {workers for workers, _ in run_elastane.read_job(name).observed.speeds}


def test_a_job_trains_with_the_options_it_was_submitted_with(run_elastane, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(
        f"command: [python, {TRAINING}, --steps=12]\n"
        f"env: {{PYTHONPATH: {SOURCES}}}\n"
        "elasticPolicy: {minReplicas: 2, maxReplicas: 2}\n"
        "training: {seed: 5, virtualRanks: 4, checkpoints: {every: never}}\n"
    )
    answer = run_elastane("submit", job, "--name", "asked", "--wait")
    assert "all 12 steps are made" in answer.stdout
    run = read_run(EngineDirectories(tmp_path / "home").get_run_dir("asked"))
    assert (run.record.pinned.seed, run.record.pinned.virtual_ranks) == (5, 4)
    assert run.record.spec.checkpoints is None
    assert {len(line.workers) for line in run.ledger} == {2}
    assert run_elastane("logs", "asked", "agent", "--job").stdout.startswith(
        "attempt 1 begins with 2 workers\n"
    )


def test_commands_for_runs_work_for_a_job_on_the_machine_where_it_trained(
    run_elastane, tmp_path, monkeypatch
):
    submit_training(run_elastane, "known", "--wait", args=("--steps=6",))
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    # `elastane up` has the jobs and the address of the controller in one home.
    shutil.copy(elsewhere / "cluster.json", home)
    monkeypatch.setenv("ELASTANE_HOME", str(home))
    assert [run["name"] for run in read_json(run_elastane, "list")] == ["known"]
    assert read_json(run_elastane, "verify", "known", "known")["equal"]
    assert "known" in run_elastane("report", "known").stdout
    run_elastane("export", "known", "--format", "torch", "--out", tmp_path / "exported")
    assert any((tmp_path / "exported").iterdir())
    assert "it has ended" in run_elastane("ps", "known", code=3).output
    # A run of this machine comes first, but only the cluster's controller can explain a job's size.
    assert run_elastane("explain", "known").stdout == run_elastane("explain", "known", "--job").stdout
    assert read_json(run_elastane, "explain", "known")["job"] == "known"


def test_a_job_follows_new_limits_while_it_trains_and_after_a_pause(run_elastane):
    submit_training(run_elastane, "stretched", "--workers", "1:2", args=("--seconds=0.02", "--steps=100000"))
    wait_until(lambda: 2 in find_trained_sizes(run_elastane, "stretched"), "2 workers train")
    run_elastane("scale", "stretched", "3:4")
    wait_until(lambda: 4 in find_trained_sizes(run_elastane, "stretched"), "4 workers train")
    run_elastane("pause", "stretched", "--wait")
    run_elastane("resume", "stretched")
    # The next attempt begins with the new limits.
    wait_until(lambda: run_elastane.read_job("stretched").observed.held, "it goes on")
    run_elastane("scale", "stretched", "1")
    wait_until(lambda: 1 in find_trained_sizes(run_elastane, "stretched"), "1 worker trains")
    run_elastane("cancel", "stretched", "--wait")
    lines = run_elastane("events", "stretched", "--job", "--json").stdout.splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert "job.failed" not in kinds
    assert kinds[-1] == "job.cancelled"
    assert kinds.count("job.cancelled") == 1


def test_a_job_fails_with_the_error_of_its_script(run_elastane):
    submit_training(run_elastane, "wrong", args=("--no-such-option",))
    wait_until(lambda: run_elastane.read_job("wrong").state == "failed", "it has failed")
    assert "unrecognized arguments: --no-such-option" in run_elastane("logs", "wrong", "--job").stdout
    assert "unrecognized arguments: --no-such-option" in run_elastane("explain", "wrong").stdout


@pytest.mark.long
def test_a_job_logs_each_step_once_over_a_resize_and_the_death_of_all(run_elastane, tmp_path):
    options = ("--workers", "1:2", "--log", "tensorboard", "--checkpoint-every", "10 steps")
    submit_training(run_elastane, "logged", *options, args=("--seconds=0.03", "--steps=120"))
    wait_until(lambda: 2 in find_trained_sizes(run_elastane, "logged"), "2 workers train")
    run_elastane("scale", "logged", "3")
    wait_until(lambda: 3 in find_trained_sizes(run_elastane, "logged"), "3 workers train")
    run_dir = EngineDirectories(tmp_path / "home").get_run_dir("logged")
    wait_until(lambda: read_run(run_dir).events[-1].kind == "checkpoint.saved", "a checkpoint is saved")
    for pid in set(list_present_processes(run_dir)) - {os.getpid()}:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: run_elastane.read_job("logged").state == "finished", "it is over")
    run = read_run(run_dir)
    assert [event.kind for event in run.events].count("run.resumed") == 1
    series = read_tensorboard(run_dir.trackers.tensorboard)
    for name in ("train/loss", "train/workers"):
        assert [step for step, _ in series[name]] == [line.step for line in run.ledger] == [*range(1, 121)]
    # Each resize is visible.
    assert {2.0, 3.0} <= {workers for _, workers in series["train/workers"]}
