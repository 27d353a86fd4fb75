"""The agent of a node that takes part in a run which began on another one."""

import asyncio
import time

import msgspec

from elastane.agent.agent import Agent
from elastane.agent.control_link import ControlLink
from elastane.agent.processes import Commands
from elastane.agent.worker_set import WorkerSet
from elastane.api.control import AgentReport, RunOver
from elastane.api.endpoint import read_endpoint
from elastane.api.exit_codes import ExitCode
from elastane.api.rundir import RunDir
from elastane.api.spec import RunSpec

CHECK_EVERY_S = 0.2
SILENCE_S = 15.0
"""How long the node waits for a coordinator; the first node starts another one within a second."""


class JoinedAgent(Agent):
    """Runs workers of a run on this node until the run is over, or until the node has left it.

    Args:
        run_dir: of the run, with the name of this node; the nodes share the directory.
        spec: of the run.
        slots: the most workers on this node.
        commands: the commands of the processes that it starts.
    """

    def __init__(self, run_dir: RunDir, spec: RunSpec, slots: int, commands: Commands | None = None) -> None:
        super().__init__(run_dir, msgspec.structs.replace(spec, start=0), commands)
        self.workers.worker_set = WorkerSet(target=0, numbers=())
        self._slots = slots
        self._leaving = False

    def stop(self) -> None:
        """Let the workers of this node leave the run at the next commit; the run goes on without them."""
        self._leaving = True
        self.workers.stop_starting()
        self._changed.set()

    async def _run_until_end(self) -> RunOver:
        link = self._make_link(lambda: read_endpoint(self._run_dir))
        return await self._serve_until_end(link, self._watch_run(link))

    async def _watch_run(self, link: ControlLink) -> None:
        """End this agent once its node has left the run, or if the run has no coordinator any more."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            running = self.workers.worker_set
            if self._leaving and not running.living and not running.requested:
                # The last report says that this node has no worker any more.
                await asyncio.sleep(CHECK_EVERY_S)
                self._finish(RunOver(code=ExitCode.OK, why="this node has left the run"))
            silent_s = time.monotonic() - link.heard_s
            if silent_s > SILENCE_S:
                why = f"no coordinator of the run has answered for {silent_s:.0f} s"
                self._finish(RunOver(code=ExitCode.FAILED, why=why))

    def make_report(self) -> AgentReport:
        """Return the present report to the coordinator, with the name and the slots of this node."""
        return msgspec.structs.replace(
            super().make_report(),
            node=self._run_dir.node,
            slots=self._slots,
            leaving=self._leaving,
            stopping=False,
        )
