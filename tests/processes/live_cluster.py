"""A cluster for a test: real store, scheduler, loop, API and engine; its jobs fork from the warm process."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from click.testing import Result
from typer.testing import CliRunner

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
from elastane.scheduler.explanations import explain_decision
from elastane.scheduler.plan import plan

from .stage import Stage, wait_until


@contextmanager
def open_cluster(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Result]]:
    """Start a cluster of six devices and return a function that runs a command there.

    The jobs are below ``home`` in the folder.
    """
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

    def run(*words: object, code: int = 0) -> Result:
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == code, result.output
        return result

    try:
        yield run
    finally:
        api.state.closing.set()
        server.should_exit = True
        loop.close()
        for thread in threads:
            thread.join()
        store.close()
        for run_dir in map(EngineDirectories(home).get_run_dir, EngineDirectories(home).list_unsettled()):
            for pid in set(list_present_processes(run_dir)) - {os.getpid()}:
                os.kill(pid, signal.SIGKILL)
