"""A real cluster on this machine: store, scheduler, loop, API and engine, for tests with jobs."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest
import uvicorn
from typer.testing import CliRunner

import elastane
from elastane.cli.main import app
from elastane.cluster.controller.agents.all_engines import AllEngines
from elastane.cluster.controller.agents.fleet import Fleet
from elastane.cluster.controller.agents.site import Site
from elastane.cluster.controller.cluster.declarations import diff_configs
from elastane.cluster.controller.elastic_jobs.follower import ElasticJobFollower
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.controller.loop import Loop, Scheduler
from elastane.cluster.controller.metrics.meters import Meters
from elastane.cluster.controller.rest.app import build_application
from elastane.cluster.controller.rest.context import Controller
from elastane.cluster.controller.store import documents, jobs
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.tokens import make_first_token
from elastane.cluster.engines.local.engine import EngineDirectories, LocalEngine
from elastane.cluster.nouns.agents import AgentEngine
from elastane.cluster.nouns.config import Config, DeclaredEngine, SchedulingRules
from elastane.cluster.nouns.engine_options import EngineKind
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan
from elastane.common.connections.controller_context import Context, save_context
from elastane.common.connections.http_listener import open_http_listener
from elastane.run.agent.presence import list_present_processes
from elastane.run.attempts.verification import verify_run
from elastane.run.observability.run_files import Recorded
from tests.run.processes.stage import SCRIPTS, Stage
from tests.waiting import wait_until

SOURCES = Path(elastane.__file__).parents[1]
TRAINING = str(SCRIPTS / "training.py")


class ElastaneCommand:
    """Runs a command of a cluster.

    Args:
        store: of the cluster. A test that waits looks there: a command for each look would take most of the
            CPU time of the test.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, *words: object, code: int = 0):
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == code, result.output
        return result

    def read_job(self, name: str) -> StoredJob:
        with self._store.begin_read() as tx:
            job = jobs.find_job(tx, name)
        assert job is not None, f"no job {name}"
        return job


@contextmanager
def open_cluster(
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rules: SchedulingRules | None = None,
    open_engine: Callable[[str], AgentEngine] | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
    kind: EngineKind = "slurm",
    engine_options: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[ElastaneCommand]:
    """Start a cluster of six devices and yield a function that runs a command there.

    Args:
        open_engine: returns the engine that starts the agents of its jobs, for the cluster with this id;
            None: jobs run on this machine.
        options: of its pool in this engine.
        kind: of this engine.
        engine_options: in its declaration.
    """
    home = tmp_path / "home"
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "elsewhere"))
    # A cluster of one machine may look more often than a large one.
    monkeypatch.setattr("elastane.cluster.controller.loop.LOOK_S", 0.2)
    monkeypatch.setattr("elastane.cluster.controller.jobs.observation_record.PROGRESS_S", 0.2)
    monkeypatch.setattr("elastane.cli.jobs.control.LOOK_S", 0.1)
    monkeypatch.setattr("elastane.cluster.client.job_handle.LOOK_S", 0.1)
    store = Store(f"sqlite:///{tmp_path}/store.db")
    with store.begin_write() as tx:
        pool, engines = Pool(name="local", device="cpu", devices=6), ()
        if open_engine is not None:
            pool = msgspec.structs.replace(pool, engine="far", options=dict(options))
            engines = (DeclaredEngine(name="far", kind=kind, options=dict(engine_options)),)
        config = Config(pools=(pool,), rules=rules, engines=engines)
        documents.write_documents(tx, diff_configs(Config(), config), time.time())
        token = make_first_token(tx, "ada", time.time())
        meters = Meters(time.time)
        meters.begin(tx)
    listener = open_http_listener("127.0.0.1", 0, certificate="", key="")
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    local = LocalEngine(home, agent=stage.build_command("elastane.run.attempts.__main__"))
    fleet = Fleet(store, Site(home, url), lambda document, cluster: open_engine(cluster))
    scheduler = Scheduler(plan=plan, explain=explain_decision)
    loop = Loop(store, AllEngines(local, fleet), scheduler, meters=meters)
    follower = ElasticJobFollower(store, home, wake=loop.wake)
    controller = Controller(
        store, wake=loop.wake, plan=plan, explain=explain_decision, home=home, meters=meters
    )
    api = build_application(controller)
    server = uvicorn.Server(uvicorn.Config(api, log_level="warning"))
    threads = [
        threading.Thread(target=asyncio.run, args=(loop.run(),)),
        threading.Thread(target=asyncio.run, args=(follower.run(),)),
        threading.Thread(target=server.run, kwargs={"sockets": [listener]}),
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.started, "the API listens")
    save_context(Context(url=url, token=token))

    try:
        yield ElastaneCommand(store)
    finally:
        api.state.closing.set()
        server.should_exit = True
        loop.close()
        follower.close()
        for thread in threads:
            thread.join()
        listener.close()
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


def count_members(run_elastane: ElastaneCommand, name: str) -> int:
    """Return how many workers of a job train now."""
    return sum(part.workers - part.absent for part in run_elastane.read_job(name).observed.held.values())


def wait_for_members(
    run_elastane: ElastaneCommand, name: str, count: int, state: Callable[[], object] | None = None
) -> None:
    wait_until(lambda: count_members(run_elastane, name) == count, f"{count} workers train", state=state)


def wait_for_state(
    run_elastane: ElastaneCommand, name: str, wanted: str, state: Callable[[], object] | None = None
) -> None:
    wait_until(lambda: run_elastane.read_job(name).state == wanted, f"{name} is {wanted}", state=state)


def assert_same_bytes(run: Recorded, reference: Recorded) -> None:
    """Assert that a run made the steps of another one, with the same bytes, and nothing else."""
    assert [line.step for line in run.ledger] == [*range(1, len(run.ledger) + 1)]
    assert [line.loss_hex for line in run.ledger] == [line.loss_hex for line in reference.ledger]
    known = {line.step: line.digest for line in reference.ledger if line.digest}
    found = {line.step: line.digest for line in run.ledger if line.digest and line.step in known}
    assert found
    assert found == {step: known[step] for step in found}
    assert verify_run(run).problems == ()
