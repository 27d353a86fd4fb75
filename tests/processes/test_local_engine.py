"""The local engine and the loop's pure parts, with real agents and workers."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from elastane.agent.presence import anyone_present, those_present
from elastane.api.jobs import ElasticPolicy, JobSpec
from elastane.api.observations import Observation
from elastane.api.orders import Kill, Start
from elastane.controller.course import Course, cancelling, granting
from elastane.controller.observing import observed
from elastane.controller.reconciling import due
from elastane.engines.local.engine import LocalEngine
from elastane.engines.local.places import Places
from elastane.lives.proof import judged
from elastane.observability.run_files import read_run

from .stage import SCRIPTS, WAIT_S, told

pytestmark = pytest.mark.processes

LOOK_S = 0.05


def job(name: str = "j", *args: str, script: str = "training.py", **env: str) -> JobSpec:
    return JobSpec(
        name=name,
        team="t",
        script=str(SCRIPTS / script) if "/" not in script else script,
        args=args,
        env=env,
        elastic_policy=ElasticPolicy(max_replicas=4),
    )


class Loop:
    """The controller's loop around one job: what the real one does, without its store and its plan."""

    def __init__(self, engine: LocalEngine, home: Path, spec: JobSpec, workers: int = 1) -> None:
        self.engine = engine
        self.course = granting(Course(job=spec.name, spec=spec), workers, time.time())
        self.run_dir = Places(home).run_dir(spec.name)
        self.seen = Observation(job=spec.name)

    async def turn(self) -> None:
        self.seen = (await self.engine.observe([self.course.job]))[self.course.job]
        self.course = observed(self.course, self.seen, time.time())
        order = due(self.course, self.seen, time.time())
        if order is not None:
            await self.engine.carry_out([order])

    async def until(self, done) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while not done(self):
                    await self.turn()
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            log = self.run_dir.log("agent")
            said = log.read_text() if log.exists() else ""
            raise AssertionError(f"{self.course}\n{self.seen}\n{said}\n{told(read_run(self.run_dir))}") from None

    async def until_over(self) -> None:
        await self.until(lambda loop: loop.course.ended is not None)

    async def until_step(self, step: int) -> None:
        await self.until(lambda loop: loop.seen.progress is not None and loop.seen.progress.step >= step)

    def grant(self, workers: int) -> None:
        self.course = granting(self.course, workers, time.time())

    def open(self, name: str) -> None:
        (self.run_dir.root / name).touch()


@pytest.fixture
def engine(stage, tmp_path) -> Iterator[LocalEngine]:
    command = (sys.executable, "-P", str(Path(__file__).with_name("warm_life.py")), *stage.commands.spares, "--")
    yield LocalEngine(tmp_path, own=environment(), agent=command)
    for run_dir in map(Places(tmp_path).run_dir, Places(tmp_path).unsettled()):
        for pid in set(those_present(run_dir)) - {os.getpid()}:
            os.kill(pid, signal.SIGKILL)


def environment() -> dict[str, str]:
    """As an operator would export it, where the package is not installed."""
    return {"PATH": os.environ["PATH"], "ELASTANE_SECRET": "the controller's"}


@pytest.fixture(autouse=True)
def _find_the_package(monkeypatch):
    """Agents have no variable of ours, so that they find the package by where it is installed."""
    monkeypatch.setattr(
        "elastane.engines.local.environment.NEEDED", ("PATH", "PYTHONPATH")
    )


def environment_of_this_tree() -> dict[str, str]:
    return environment() | {"PYTHONPATH": os.pathsep.join(sys.path)}
