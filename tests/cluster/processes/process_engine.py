"""An engine that starts its agents as processes of this machine; jobs see no difference to other machines."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from elastane.cluster.nouns.agents import AgentAsk, AgentEnd, Away, SeenAgent, SeenNode, StartRefusal
from tests.waiting import WAIT_S


class ProcessEngine:
    """An `elastane.cluster.nouns.agents.AgentEngine`.

    Args:
        command: of `elastane`, before its words.
        where: for the output of the agents.
        own_homes: each agent has a home of its own, as on machines that share no directory.
        umask: with which they begin; -1: that of this process.
    """

    def __init__(
        self, command: Sequence[str], where: Path, *, own_homes: bool = False, umask: int = -1
    ) -> None:
        self._command, self._where, self._own_homes, self._umask = command, where, own_homes, umask
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        where.mkdir()

    def read_log(self, id_: str) -> str:
        return (self._where / f"{id_}.log").read_text()

    def list_living(self) -> list[str]:
        """Return the ids of the living agents, the oldest first."""
        return [id_ for id_, process in self.agents.items() if process.poll() is None]

    def list_own_runs(self) -> list[str]:
        """Return the agents that have left a run directory of their own."""
        return [path.name for path in self._where.glob("*/agent-runs/*/*")]

    async def list_agents(self) -> Sequence[SeenAgent] | Away:
        return [
            SeenAgent(id=id_, state="running", node=f"node-of-{id_}")
            if process.poll() is None
            else SeenAgent(
                id=id_, state="gone", exit_code=None if process.returncode < 0 else process.returncode
            )
            for id_, process in self.agents.items()
        ]

    async def start_agents(self, asks: Sequence[AgentAsk]) -> Mapping[str, StartRefusal]:
        for ask in asks:
            if ask.id not in self.agents:
                self._start(ask)
        return {}

    def _start(self, ask: AgentAsk) -> None:
        with (self._where / f"{ask.id}.log").open("wb") as log:
            process = self.agents[ask.id] = subprocess.Popen(
                [*self._command, "join", "-"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | ({"ELASTANE_HOME": str(self._where / ask.id)} if self._own_homes else {}),
                start_new_session=True,
                umask=self._umask,
            )
        process.stdin.write(f"{ask.ticket}\n".encode())
        process.stdin.close()

    async def end_agents(self, ends: Sequence[AgentEnd]) -> Mapping[str, str]:
        for end in ends:
            process = self.agents.get(end.id)
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM if end.grace_s else signal.SIGKILL)
        return {}

    async def list_nodes(self, pools: Mapping[str, Mapping[str, str]]) -> Sequence[SeenNode] | Away:
        return ()

    async def close(self) -> None:
        """Do nothing: agents go on."""

    def find_only(self) -> subprocess.Popen[bytes]:
        """Return the process of the only agent."""
        (process,) = self.agents.values()
        return process

    def kill(self, id_: str) -> None:
        """Kill an agent; its workers end with it."""
        self.agents[id_].kill()
        self.agents[id_].wait(WAIT_S)

    def end(self) -> None:
        """Kill all that are left at the end of a test."""
        for process in self.agents.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(WAIT_S)
