"""An engine of processes, each with a home of its own, as on machines that share no directory."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from elastane.cluster.nouns.agents import AgentAsk, AgentEnd, Away, SeenAgent, SeenNode, StartRefusal


class OwnMachines:
    """An `AgentEngine` on this machine.

    Args:
        command: of an agent, with its arguments.
        where: the homes of the agents are below it.
        environment: of every agent.
    """

    def __init__(self, command: Sequence[str], where: Path, environment: Mapping[str, str]) -> None:
        self._command, self._where, self._environment = command, where, environment
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.killed: list[str] = []

    async def list_agents(self) -> Sequence[SeenAgent] | Away:
        return [
            SeenAgent(id=id_, state="running", node=f"m-{id_}")
            if (code := process.poll()) is None
            else SeenAgent(id=id_, state="gone", node=f"m-{id_}", exit_code=code if code >= 0 else None)
            for id_, process in self.processes.items()
        ]

    async def start_agents(self, asks: Sequence[AgentAsk]) -> Mapping[str, StartRefusal]:
        for ask in asks:
            if ask.id not in self.processes:
                self._start(ask)
        return {}

    def _start(self, ask: AgentAsk) -> None:
        home = self._where / ask.id
        home.mkdir(parents=True)
        with (home / "output").open("wb") as output:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**self._environment, "ELASTANE_HOME": str(home)},
                start_new_session=True,
            )
        process.stdin.write(ask.ticket.encode())
        process.stdin.close()
        self.processes[ask.id] = process

    async def end_agents(self, ends: Sequence[AgentEnd]) -> Mapping[str, str]:
        for end in ends:
            if end.id in self.processes and self.processes[end.id].poll() is None:
                os.killpg(self.processes[end.id].pid, signal.SIGTERM if end.grace_s else signal.SIGKILL)
        return {}

    async def list_nodes(self, pools: Mapping[str, Mapping[str, str]]) -> Sequence[SeenNode] | Away:
        return [SeenNode(name=f"m-{number}", pool=pool, devices=1) for pool in pools for number in range(6)]

    async def close(self) -> None:
        pass

    def kill(self, id_: str) -> None:
        """Kill all processes of an agent at once, as a dying machine does."""
        self.killed.append(id_)
        os.killpg(self.processes[id_].pid, signal.SIGKILL)
        self.processes[id_].wait()

    def list_living(self) -> list[str]:
        """Return the ids of the living agents, the oldest first."""
        return [id_ for id_, process in self.processes.items() if process.poll() is None]

    def find_beginner(self) -> str:
        """Return the id of the living agent that has begun the newest attempt."""
        return next(
            id_
            for id_ in reversed(self.list_living())
            if "begins with" in (self._where / id_ / "output").read_text(errors="replace")
        )

    def list_own_runs(self) -> set[str]:
        """Return the agents that have left a run directory."""
        return {path.name for path in self._where.glob("*/agent-runs/*")}

    def read_outputs(self) -> str:
        """Return what all agents have written, for the message of a failure."""
        return "\n".join(
            f"--- {path.parent.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self._where.glob("*/output"))
        )
