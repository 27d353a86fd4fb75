"""A controller is killed again and again, at any moment; the engine's jobs train on undisturbed."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

import elastane
from elastane.cluster.controller.jobs.lifecycle import JobLifecycle, apply_observation
from elastane.cluster.controller.jobs.reconciliation import choose_order
from elastane.cluster.engines.local.engine import EngineDirectories, LocalEngine
from elastane.cluster.nouns.engine import Observation
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.run.agent.presence import list_present_processes
from elastane.run.attempts.verification import verify_run
from elastane.run.observability.run_files import read_run
from tests.cluster.job_lifecycles import cancel_lifecycle, grant_workers
from tests.run.processes.stage import SCRIPTS, describe_run

pytestmark = [pytest.mark.processes, pytest.mark.early]

CANCEL = -1
SIZES = {"grows": (2, 3, 1, 0, 2), "ends": (1,), "cancelled": (2, 1, CANCEL)}
"""The numbers of workers that each job is granted in turn, each once the one before is reached."""

CYCLE_S = 0.03
LONGEST_S = 240
MOST_CALLS = 25
LONGEST_CONTROLLER_S = 0.4


class Stored(msgspec.Struct):
    """The state that survives the controller, in place of its database."""

    lifecycles: dict[str, JobLifecycle]
    granted: dict[str, int]
    cycles: int = 0


class Store:
    """A file with the stored state."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Stored:
        return msgspec.json.decode(self._path.read_bytes(), type=Stored)

    def write(self, stored: Stored) -> None:
        beside = self._path.with_suffix(".new")
        beside.write_bytes(msgspec.json.encode(stored))
        beside.replace(self._path)


class Driver:
    """A small controller. It calls ``call`` between any two of its actions."""

    def __init__(self, engine: LocalEngine, store: Store, call: Callable[[], None]) -> None:
        self._engine = engine
        self._store = store
        self._call = call

    async def drive(self) -> None:
        """Run cycles until every job is over and settled."""
        while await self._run_cycle():  # noqa: ASYNC110 - each cycle observes the engine; no event announces a change
            await asyncio.sleep(CYCLE_S)  # not a wait: paces the cycles

    async def _run_cycle(self) -> bool:
        stored = self._store.read()
        self._call()
        seen = await self._engine.observe([job for job, at in stored.lifecycles.items() if at.ended is None])
        self._call()
        for job, sight in seen.items():
            stored.lifecycles[job] = apply_observation(stored.lifecycles[job], sight, time.time())
        self._store.write(stored)
        self._call()
        for job, lifecycle in stored.lifecycles.items():
            if job in seen and has_granted_size(lifecycle, seen[job]):
                sizes = SIZES[job]
                at = stored.granted[job] = min(stored.granted[job] + 1, len(sizes) - 1)
                stored.lifecycles[job] = change_size(lifecycle, sizes[at])
        stored.cycles += 1
        self._store.write(stored)
        self._call()
        for job, sight in seen.items():
            order = choose_order(stored.lifecycles[job], sight, time.time())
            if order is not None:
                await self._engine.carry_out([order])
            self._call()
        return bool(seen)


def change_size(lifecycle: JobLifecycle, size: int) -> JobLifecycle:
    return (
        cancel_lifecycle(lifecycle, time.time())
        if size == CANCEL
        else grant_workers(lifecycle, size, time.time())
    )


def has_granted_size(lifecycle: JobLifecycle, seen: Observation) -> bool:
    if lifecycle.granted == 0:
        return lifecycle.uses == 0
    return seen.workers == seen.target == lifecycle.granted and lifecycle.granted in find_trained_sizes(seen)


def find_trained_sizes(seen: Observation) -> set[int]:
    return {workers for workers, _ in seen.progress.speeds} if seen.progress else set()


def build_spec(name: str) -> JobSpec:
    return JobSpec(
        name=name,
        team="t",
        script=str(SCRIPTS / "training.py"),
        args=("--seconds=0.01", "--steps=100000" if CANCEL in SIZES[name] else "--steps=120"),
        env={"PYTHONPATH": str(Path(elastane.__file__).parents[1])},
        elastic_policy=ElasticPolicy(max_replicas=4),
    )


def run_driver(engine: Callable[[], LocalEngine], store: Store, dice: Random) -> int:
    """Fork a driver that dies between two of its actions, or at any instant.

    Returns:
        The exit status as `os.waitpid` gives it.
    """
    calls = iter(range(dice.randrange(1, MOST_CALLS)))
    controller_s = dice.uniform(0.001, LONGEST_CONTROLLER_S)
    by_calls = dice.random() < 0.5
    pid = os.fork()
    if pid == 0:

        def call() -> None:
            if by_calls and next(calls, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        if not by_calls:
            # No handler catches SIGALRM, so it ends the process at any instruction.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, controller_s)
        try:
            asyncio.run(Driver(engine(), store, call).drive())
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


@pytest.mark.long
def test_no_job_is_lost_started_twice_or_left_running(stage, tmp_path):
    seed = time.time_ns()
    dice = Random(seed)
    warm = stage.build_command("elastane.run.attempts.__main__")
    places, store = EngineDirectories(tmp_path), Store(tmp_path / "stored.json")
    lifecycles = {
        job: grant_workers(JobLifecycle(job=job, spec=build_spec(job)), SIZES[job][0], time.time())
        for job in SIZES
    }
    store.write(Stored(lifecycles, dict.fromkeys(SIZES, 0)))
    killed, give_up = 0, time.monotonic() + LONGEST_S
    try:
        while status := run_driver(lambda: LocalEngine(tmp_path, agent=warm), store, dice):
            assert os.WIFSIGNALED(status), f"seed {seed}: a driver failed by itself"
            killed += 1
            assert time.monotonic() < give_up, f"seed {seed}, {killed} kills: {store.read()}"
    finally:
        left = {job: set(list_present_processes(places.get_run_dir(job))) - {os.getpid()} for job in SIZES}
        for pid in set.union(*left.values()):
            os.kill(pid, signal.SIGKILL)
    assert not any(left.values()), f"seed {seed}"
    assert places.list_unsettled() == set()
    assert killed > 20
    for job, lifecycle in store.read().lifecycles.items():
        assert_job_is_complete(
            job, lifecycle, read_run(places.get_run_dir(job)), f"seed {seed}, {killed} kills"
        )


def assert_job_is_complete(job, lifecycle, run, where):
    assert lifecycle.ended.how == ("cancelled" if CANCEL in SIZES[job] else "finished"), (
        f"{where}: {lifecycle}"
    )
    assert (lifecycle.crashes, lifecycle.uses) == (0, 0), f"{where}: {lifecycle}"
    assert lifecycle.over == 1 + SIZES[job].count(0), f"{where}: {lifecycle}\n{describe_run(run)}"
    log = run.run_dir.log("agent").read_text()
    begun = [line for line in log.splitlines() if " begins with " in line]
    assert [line.split()[1] for line in begun] == [str(attempt + 1) for attempt in range(lifecycle.over)], (
        where
    )
    assert [line.step for line in run.ledger] == list(range(1, len(run.ledger) + 1))
    assert verify_run(run).problems == (), f"{where}\n{describe_run(run)}"
    # The job changed its size and nothing else: no worker died and no coordinator was replaced.
    assert not {event.kind for event in run.events} & {"worker.died", "worker.hung", "coordinator.died"}, (
        describe_run(run)
    )
