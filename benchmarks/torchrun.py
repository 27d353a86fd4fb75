"""The contestant torchrun: two elastic agents on this machine, in a private network."""

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import ticks
from job import Job
from private_network import PrivateNetwork
from processes import Processes, wait_until

PORT = 29_400
QUICK_START = "last_call_timeout=1"
"""Shortens the time between the arrival of the last agent and the start, 30 s by default."""
# With a shared store (torch 2.13) an agent that arrives later waits 60 s for an address which the first agent
# published in the first round only, and gives up: no agent could ever join.
AGENT_ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def build_agent_command(job: Job, host: str, own: str, each: int, conf: str = QUICK_START) -> list[str]:
    """Return the command line of an elastic agent.

    Args:
        job: the job to train.
        host: the address of the agent with the rendezvous.
        own: the address of this agent.
        each: the workers of an agent.
        conf: the value of ``--rdzv-conf``.
    """
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes=1:2", f"--nproc-per-node={each}", "--max-restarts=100", "--rdzv-id=bench"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={host}:{PORT}", f"--local-addr={own}"),
        *(f"--rdzv-conf={conf}", "--monitor-interval=0.1"),
        *job.build_script_command("torchrun"),
    ]


class TorchrunRun:
    """``with TorchrunRun(job, folder) as run:`` ends the agents and their workers with the block.

    Raises:
        NoPrivateNetwork: torchrun would listen on every address of this machine.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self.network = PrivateNetwork()
        self.processes = Processes(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent in self.processes.started:
            self.stop(agent)
        self.processes.__exit__(kind, error, trace)
        self.network.close()

    def start_agent(self) -> subprocess.Popen[bytes]:
        return self.processes.start(
            self.network.wrap_command(build_agent_command(self.job, "127.0.0.1", "127.0.0.1", 1)),
            GLOO_SOCKET_IFNAME="lo",
            **AGENT_ENVIRONMENT,
        )

    def stop(self, agent: subprocess.Popen[bytes]) -> None:
        """End one agent by a signal, so that it ends its workers."""
        if agent.poll() is None:
            agent.terminate()
            try:
                agent.wait(20)
            except subprocess.TimeoutExpired:
                agent.kill()

    def read_ticks(self) -> list[ticks.Tick]:
        return ticks.read_steps(self.job.out)

    def find_newest_pids(self, workers: int) -> list[int]:
        """Return the pids of the ``workers`` that did the newest steps."""
        found: list[int] = []
        for tick in reversed(self.read_ticks()):
            if tick.pid not in found:
                found.append(tick.pid)
        return found[:workers]

    def find_last_step(self) -> int:
        """Return the highest step that any worker has done."""
        return max((tick.step for tick in self.read_ticks()), default=0)

    def wait_for_step(self, step: int) -> float:
        """Wait for ``step`` if necessary, and return the monotonic time at which it was first done."""

        def done() -> bool:
            failure = self.processes.find_failure()
            if failure:
                raise RuntimeError(failure)
            return self.find_last_step() >= step

        wait_until(done, f"step {step} under torchrun", timeout_s=180)
        return min(tick.at_s for tick in self.read_ticks() if tick.step >= step)
