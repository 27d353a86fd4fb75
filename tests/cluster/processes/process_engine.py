"""An engine that starts its agents as processes of this machine; jobs see no difference to other machines.

It keeps the contract of engines, see `tests.cluster.engines.contract`. `AgentProcesses` is the place where it
works, and outlives it as a cluster does: several engines may work there, also those of other clusters.
"""

import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from elastane.cluster.nouns.agents import (
    AgentAsk,
    AgentEnd,
    Away,
    SeenAgent,
    SeenNode,
    StartRefusal,
    belongs_to,
    is_ticket_word,
)
from elastane.cluster.nouns.option_forms import WORKERS
from tests.waiting import WAIT_S

NODE = "here"
SILENCE = "the processes of this machine do not answer"


class AgentProcesses:
    """The agents on this machine, which is the one node of their engine.

    Args:
        command: of `elastane`, before its words.
        where: for the output of the agents.
        own_homes: each agent has a home of its own, as on machines that share no directory.
        umask: with which they begin; -1: that of this process.
        devices: how many the node has.

    Attributes:
        is_silent: engines get no answer.
    """

    def __init__(
        self,
        command: Sequence[str],
        where: Path,
        *,
        own_homes: bool = False,
        umask: int = -1,
        devices: int = 6,
    ) -> None:
        self._command, self._where, self._own_homes, self._umask = command, where, own_homes, umask
        self._ended_s: dict[str, float] = {}
        self.devices = devices
        self.held: dict[str, int] = {}
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.is_silent = False
        where.mkdir()

    def read_log(self, id_: str) -> str:
        return (self._where / f"{id_}.log").read_text()

    def list_living(self) -> list[str]:
        """Return the ids of the living agents, the oldest first."""
        return [id_ for id_, process in self.agents.items() if process.poll() is None]

    def list_own_runs(self) -> list[str]:
        """Return the agents that have left a run directory of their own."""
        return [path.name for path in self._where.glob("*/agent-runs/*/*")]

    def look(self, id_: str) -> SeenAgent:
        code = self.agents[id_].poll()
        if code is None:
            return SeenAgent(id=id_, state="running", node=NODE)
        ended_s = self._ended_s.setdefault(id_, time.time())
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return SeenAgent(
            id=id_,
            state="gone",
            node=NODE,
            why=f"its process has ended with {how}",
            exit_code=None if code < 0 else code,
            ended_s=ended_s,
        )

    def start(self, ask: AgentAsk) -> None:
        """Start an agent; no id is started twice."""
        if ask.id in self.agents:
            return
        self.held[ask.id] = ask.devices
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

    def end_agent(self, end: AgentEnd) -> None:
        process = self.agents.get(end.id)
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM if end.grace_s else signal.SIGKILL)

    def count_held(self, agents: Collection[str]) -> int:
        """Return how many devices these agents hold together."""
        return sum(self.held[id_] for id_ in self.list_living() if id_ in agents)

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


class ProcessEngine:
    """An `elastane.cluster.nouns.agents.AgentEngine`.

    Args:
        processes: where it works.
        cluster: its agents belong to this cluster; it touches no others.
    """

    def __init__(self, processes: AgentProcesses, cluster: str) -> None:
        self._processes, self._cluster = processes, cluster

    def _list_own(self) -> list[str]:
        return [id_ for id_ in self._processes.agents if belongs_to(id_, self._cluster)]

    async def list_agents(self) -> Sequence[SeenAgent] | Away:
        if self._processes.is_silent:
            return Away(SILENCE)
        return [self._processes.look(id_) for id_ in self._list_own()]

    async def start_agents(self, asks: Sequence[AgentAsk]) -> Mapping[str, StartRefusal]:
        if self._processes.is_silent:
            return {ask.id: StartRefusal(SILENCE) for ask in asks}
        refused = {ask.id: why for ask in asks if (why := self._explain_refusal(ask))}
        for ask in asks:
            if ask.id not in refused:
                self._processes.start(ask)
        return {id_: StartRefusal(why, for_ever=True) for id_, why in refused.items()}

    def _explain_refusal(self, ask: AgentAsk) -> str:
        """Return why no such agent can be started; empty: it can."""
        if not belongs_to(ask.id, self._cluster):
            return "it is not an agent of this cluster"
        if ask.devices < 1:
            return "an agent has a device at least"
        if not is_ticket_word(ask.ticket):
            return "its ticket is not one word"
        unknown = ask.pool.keys() - {WORKERS.name}
        return f"the pool has no option {min(unknown)}" if unknown else ""

    async def end_agents(self, ends: Sequence[AgentEnd]) -> Mapping[str, str]:
        if self._processes.is_silent:
            return {end.id: SILENCE for end in ends}
        for end in ends:
            if belongs_to(end.id, self._cluster):
                self._processes.end_agent(end)
        return {}

    async def list_nodes(self, pools: Mapping[str, Mapping[str, str]]) -> Sequence[SeenNode] | Away:
        if self._processes.is_silent:
            return Away(SILENCE)
        others = self._processes.agents.keys() - set(self._list_own())
        free = self._processes.devices - self._processes.count_held(others)
        return [SeenNode(name=NODE, pool=pool, devices=free) for pool in pools]

    async def close(self) -> None:
        """Do nothing: agents go on."""
