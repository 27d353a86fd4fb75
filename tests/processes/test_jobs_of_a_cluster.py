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

from .stage import SCRIPTS, eventually

pytestmark = pytest.mark.processes

SOURCES = Path(elastane.__file__).parents[1]
TRAINING = str(SCRIPTS / "training.py")


@pytest.fixture
def typed(stage, tmp_path, monkeypatch) -> Iterator[Callable]:
    """A cluster of six devices; what is typed is answered by its controller."""
    home = tmp_path / "home"
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "elsewhere"))
    store = Store(f"sqlite:///{tmp_path}/store.db")
    with store.begin_write() as tx:
        pool = Pool(name="local", device="cpu", devices=6)
        documents.write_documents(tx, diff_configs(Config(), Config(pools=(pool,))), time.time())
        token = make_first_token(tx, "ada", time.time())
    loop = Loop(
        store,
        LocalEngine(home, agent=stage.program("elastane.attempts.__main__")),
        Scheduler(plan=plan, explain=explain_decision),
    )
    api = build_application(Controller(store, wake=loop.wake, plan=plan, explain=explain_decision))
    server = uvicorn.Server(uvicorn.Config(api, host="127.0.0.1", port=0, log_level="warning"))
    threads = [threading.Thread(target=asyncio.run, args=(loop.run(),)), threading.Thread(target=server.run)]
    for thread in threads:
        thread.start()
    eventually(lambda: server.started, "the API listens")
    port = server.servers[0].sockets[0].getsockname()[1]
    save_context(Context(url=f"http://127.0.0.1:{port}", token=token))

    def answer(*words, code=0):
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == code, result.output
        return result

    yield answer
    api.state.closing.set()
    server.should_exit = True
    loop.close()
    for thread in threads:
        thread.join()
    store.close()
    for run_dir in map(EngineDirectories(home).run_dir, EngineDirectories(home).list_unsettled()):
        for pid in set(list_present_processes(run_dir)) - {os.getpid()}:
            os.kill(pid, signal.SIGKILL)


def told(typed, *words):
    return json.loads(typed(*words, "--json").stdout)


def submitted(typed, name: str, *options: str, args: tuple[str, ...] = ()) -> None:
    # Whoever has not installed the package must name where it is.
    where = ("--env", f"PYTHONPATH={SOURCES}")
    typed("submit", TRAINING, "--name", name, *where, *options, "--", *args)


def trained_by(typed, name: str) -> set[int]:
    """With how many workers it has been seen to train."""
    return {workers for workers, _ in told(typed, "describe", name)["observed"].get("speeds", ())}


def test_a_job_is_waited_for_and_trains_as_it_was_asked_to(typed, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(
        f"command: [python, {TRAINING}, --steps=12]\n"
        f"env: {{PYTHONPATH: {SOURCES}}}\n"
        "elasticPolicy: {minReplicas: 2, maxReplicas: 2}\n"
        "training: {seed: 5, virtualRanks: 4, checkpoints: {every: never}}\n"
    )
    answer = typed("submit", job, "--name", "asked", "--wait")
    assert "all 12 steps are made" in answer.stdout
    run = read_run(EngineDirectories(tmp_path / "home").run_dir("asked"))
    assert (run.record.pinned.seed, run.record.pinned.virtual_ranks) == (5, 4)
    assert run.record.spec.checkpoints is None
    assert {len(line.workers) for line in run.ledger} == {2}
    assert typed("logs", "asked", "agent", "--job").stdout.startswith("attempt 1 begins with 2 workers\n")


def test_what_can_be_asked_of_a_run_can_be_asked_of_a_job_where_it_trained(typed, tmp_path, monkeypatch):
    submitted(typed, "known", "--wait", args=("--steps=6",))
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    # As `elastane up` has it: jobs and the way to the controller in one home.
    shutil.copy(elsewhere / "cluster.json", home)
    monkeypatch.setenv("ELASTANE_HOME", str(home))
    assert [run["name"] for run in told(typed, "list")] == ["known"]
    assert told(typed, "verify", "known", "known")["equal"]
    assert "known" in typed("report", "known").stdout
    typed("export", "known", "--format", "torch", "--out", tmp_path / "exported")
    assert any((tmp_path / "exported").iterdir())
    assert "it has ended" in typed("ps", "known", code=3).output
    # A run of this machine wins, but it is the cluster's controller that knows why a job has its size.
    assert typed("explain", "known").stdout == typed("explain", "known", "--job").stdout
    assert told(typed, "explain", "known")["job"] == "known"


def test_a_job_that_trains_follows_limits_beyond_those_it_began_with(typed):
    submitted(typed, "stretched", "--workers", "1:2", args=("--seconds=0.02", "--steps=100000"))
    eventually(lambda: 2 in trained_by(typed, "stretched"), "2 workers train")
    typed("scale", "stretched", "4:5")
    eventually(lambda: 5 in trained_by(typed, "stretched"), "5 workers train")
    typed("pause", "stretched", "--wait")
    typed("resume", "stretched")
    # Another attempt, which begins with the limits as they are.
    eventually(lambda: told(typed, "describe", "stretched")["observed"].get("held", {}), "it goes on")
    typed("scale", "stretched", "1")
    eventually(lambda: 1 in trained_by(typed, "stretched"), "1 worker trains")
    typed("cancel", "stretched", "--wait")
    lines = typed("events", "stretched", "--job", "--json").stdout.splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert "job.failed" not in kinds
    assert kinds[-1] == "job.cancelled"
    assert kinds.count("job.cancelled") == 1


def test_a_script_that_raises_is_the_jobs_failure_in_its_own_words(typed):
    submitted(typed, "wrong", args=("--no-such-option",))
    eventually(lambda: told(typed, "describe", "wrong")["state"] == "failed", "it has failed")
    assert "unrecognized arguments: --no-such-option" in typed("logs", "wrong", "--job").stdout
    assert "SystemExit(2)" in typed("explain", "wrong").stdout
