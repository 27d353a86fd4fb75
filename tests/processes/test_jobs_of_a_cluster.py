"""Jobs from the command line to their last step: real store, scheduler, loop, API, engine and workers."""

import asyncio
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn
from typer.testing import CliRunner

import elastane
from elastane.agent.presence import list_present_processes
from elastane.api.config import Config
from elastane.api.pools import Pool
from elastane.cli.main import app
from elastane.client.context import Context, save_context
from elastane.controller.bootstrap import make_first_token
from elastane.controller.cluster.declarations import diff_configs
from elastane.controller.loop import Loop, Scheduler
from elastane.controller.rest.app import build_application
from elastane.controller.rest.context import Controller
from elastane.controller.store import documents
from elastane.controller.store.database import Store
from elastane.engines.local.engine import LocalEngine
from elastane.engines.local.engine_directories import EngineDirectories
from elastane.observability.run_files import read_run
from elastane.scheduler.explanations import explain_decision
from elastane.scheduler.plan import plan

from .stage import SCRIPTS, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.early]

SOURCES = Path(elastane.__file__).parents[1]
TRAINING = str(SCRIPTS / "training.py")


@pytest.fixture
def run_elastane(stage, tmp_path, monkeypatch) -> Iterator[Callable]:
    """Start a cluster of six devices and return a function that runs a command there."""
    home = tmp_path / "home"
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "elsewhere"))
    # A cluster of one machine may look more often than a large one.
    monkeypatch.setattr("elastane.controller.loop.LOOK_S", 0.2)
    monkeypatch.setattr("elastane.controller.jobs.observation_record.PROGRESS_S", 0.2)
    monkeypatch.setattr("elastane.cli.jobs.job_polling.LOOK_S", 0.1)
    store = Store(f"sqlite:///{tmp_path}/store.db")
    with store.begin_write() as tx:
        pool = Pool(name="local", device="cpu", devices=6)
        documents.write_documents(tx, diff_configs(Config(), Config(pools=(pool,))), time.time())
        token = make_first_token(tx, "ada", time.time())
    loop = Loop(
        store,
        LocalEngine(home, agent=stage.build_command("elastane.attempts.__main__")),
        Scheduler(plan=plan, explain=explain_decision),
    )
    api = build_application(Controller(store, wake=loop.wake, plan=plan, explain=explain_decision))
    server = uvicorn.Server(uvicorn.Config(api, host="127.0.0.1", port=0, log_level="warning"))
    threads = [threading.Thread(target=asyncio.run, args=(loop.run(),)), threading.Thread(target=server.run)]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.started, "the API listens")
    port = server.servers[0].sockets[0].getsockname()[1]
    save_context(Context(url=f"http://127.0.0.1:{port}", token=token))

    def run(*words, code=0):
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == code, result.output
        return result

    yield run
    api.state.closing.set()
    server.should_exit = True
    loop.close()
    for thread in threads:
        thread.join()
    store.close()
    for run_dir in map(EngineDirectories(home).get_run_dir, EngineDirectories(home).list_unsettled()):
        for pid in set(list_present_processes(run_dir)) - {os.getpid()}:
            os.kill(pid, signal.SIGKILL)


def read_json(run_elastane, *words):
    return json.loads(run_elastane(*words, "--json").stdout)


def submit_training(run_elastane, name: str, *options: str, args: tuple[str, ...] = ()) -> None:
    # The package may not be installed, so the job needs its path.
    where = ("--env", f"PYTHONPATH={SOURCES}")
    run_elastane("submit", TRAINING, "--name", name, *where, *options, "--", *args)


def find_trained_sizes(run_elastane, name: str) -> set[int]:
    """Return the numbers of workers with which a job has been observed to train."""
    return {workers for workers, _ in read_json(run_elastane, "describe", name)["observed"].get("speeds", ())}


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
    wait_until(
        lambda: read_json(run_elastane, "describe", "stretched")["observed"].get("held", {}), "it goes on"
    )
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
    wait_until(lambda: read_json(run_elastane, "describe", "wrong")["state"] == "failed", "it has failed")
    assert "unrecognized arguments: --no-such-option" in run_elastane("logs", "wrong", "--job").stdout
    assert "SystemExit(2)" in run_elastane("explain", "wrong").stdout
