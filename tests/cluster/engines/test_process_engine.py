"""The engine with agents that are processes of this machine keeps the contract of engines.

Jobs are tested on it where the engine does not matter, so it has to behave as the others do.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from elastane.cluster.nouns.agents import AgentEngine
from tests.cluster.engines.agent_desk import COMMAND, AgentDesk
from tests.cluster.engines.contract import AgentEngineContract
from tests.cluster.processes.process_engine import AgentProcesses, ProcessEngine
from tests.waiting import WAIT_S

pytestmark = pytest.mark.processes


class ProcessSite:
    """An `EngineSite`."""

    pool: Mapping[str, str] = {}

    def __init__(self, where, runner: asyncio.Runner) -> None:
        self.processes = AgentProcesses(COMMAND, where)
        self.desk = AgentDesk()
        self.run = runner.run

    def build_engine(self, cluster: str, *, answer_s: float = WAIT_S) -> AgentEngine:
        return ProcessEngine(self.processes, cluster)

    @contextmanager
    def silence(self) -> Iterator[None]:
        self.processes.is_silent = True
        try:
            yield
        finally:
            self.processes.is_silent = False

    def close(self) -> None:
        self.desk.close()
        self.processes.end()


@pytest.fixture
def site(tmp_path, event_loop_runner: asyncio.Runner) -> Iterator[ProcessSite]:
    site = ProcessSite(tmp_path / "agents", event_loop_runner)
    try:
        yield site
    finally:
        site.close()


class TestProcessEngine(AgentEngineContract):
    """The contract of all engines."""
