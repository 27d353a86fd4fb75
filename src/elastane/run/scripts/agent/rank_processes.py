"""The processes of the worlds of a run, and the fork server that forks them."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Malformed
from elastane.run.agent.fork_server import ForkAnswer, ForkServerHandle, ProcessStart
from elastane.run.agent.presence import list_present_processes
from elastane.run.agent.processes import Child
from elastane.run.agent.restarts import Deaths
from elastane.run.nouns.control import ProcessInfo
from elastane.run.nouns.membership import WorkerId
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunSpec, TorchrunContract
from elastane.run.observability.tail import read_end_of_text
from elastane.run.scripts.agent.failure_report import find_error_file
from elastane.run.scripts.worlds.environment import RUN_DIRECTORY, WorldAddress, build_rank_environment
from elastane.run.scripts.worlds.messages import RankExited, ServerLost, ServerReady, WorldGone, WorldInput
from elastane.run.scripts.worlds.state import LocalRank, World

COMMAND = (sys.executable, "-P", "-m", "elastane.run.scripts.processes.script_server")
"""The command of the fork server, up to its options; ``-P`` as for the other processes of a run."""
LOG = "fork-server"
LAST_ANSWERS_S = 0.2
SWEEP_S = 0.02
SHOWN_LOG_BYTES = 10_000


class RankProcesses:
    """Keeps a fork server running, and passes on what happens to the processes.

    Args:
        report: receives the inputs of the decisions.
        give_up: receives the reason why no process can be started any more.
        command: of the fork server; None: the usual one.
    """

    def __init__(
        self,
        run_dir: RunDir,
        spec: RunSpec,
        *,
        report: Callable[[WorldInput], None],
        give_up: Callable[[str], None],
        command: Sequence[str] | None = None,
    ) -> None:
        self.pids: dict[LocalRank, int] = {}
        self._run_dir = run_dir
        self._spec = spec
        self._contract = spec.contract or TorchrunContract()
        self._report = report
        self._give_up = give_up
        self._command = command
        self._server: ForkServerHandle | None = None
        self._ending = asyncio.Event()

    @property
    def server(self) -> ProcessInfo | None:
        """The fork server, for the list of processes."""
        if self._server is None:
            return None
        return ProcessInfo(role="fork-server", pid=self._server.child.pid, state=self._server.state)

    def end(self) -> None:
        """End the fork server, and with it every process that is left."""
        self._ending.set()
        if self._server is not None:
            self._server.child.close_input()

    def start(self, world: World) -> None:
        """Start all processes of a world."""
        address = WorldAddress(self._spec.name, restarts=world.generation - 1)
        starts = tuple(self._build_start(world, rank, address) for rank in world.ranks)
        # A server that has just died forks nothing; its loss is the next input.
        if self._server is not None:
            self._server.start(starts, world.generation)

    def signal(self, number: signal.Signals) -> None:
        """Signal every process of the newest world."""
        if self._server is not None:
            self._server.signal(number)

    async def keep(self, lifeline: int) -> None:
        """Keep a fork server running until `end`.

        Args:
            lifeline: the read end of a pipe that closes when this process ends.

        Raises:
            OSError: a server cannot be started.
        """
        deaths = Deaths(within_s=60)
        while not self._ending.is_set():
            server = self._server = ForkServerHandle(self._start_server(lifeline))
            reading = asyncio.create_task(self._read_answers(server))
            try:
                code = await server.child.wait()
                await asyncio.wait((reading,), timeout=LAST_ANSWERS_S)
            finally:
                self._server = None
                reading.cancel()
                server.child.kill()
                await server.child.wait()
                server.child.close()
            if self._ending.is_set():
                return
            await self._sweep()
            self.pids.clear()
            self._report(ServerLost())
            deaths = deaths.add(time.monotonic(), code)
            if deaths.too_many:
                log = self._run_dir.log(LOG)
                last = (
                    read_end_of_text(self._run_dir.files, log, SHOWN_LOG_BYTES).splitlines() or ["nothing"]
                )[-1]
                why = f"the fork server died {len(deaths.times)} times; {log} ends with: {last}"
                self._give_up(why)
                return

    def _start_server(self, lifeline: int) -> Child:
        options = ("--run-dir", str(self._run_dir.root), "--lifeline", str(lifeline))
        return Child(
            (*(self._command or COMMAND), *options),
            self._run_dir.log(LOG),
            pass_fds=(lifeline,),
            pipe_in=True,
            pipe_out=True,
            threads=self._spec.threads if "OMP_NUM_THREADS" not in os.environ else None,
        )

    async def _sweep(self) -> None:
        """Kill what a dead fork server has left behind: every process that holds the lock of the run."""
        own = os.getpid()
        while left := [pid for pid in list_present_processes(self._run_dir) if pid != own]:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(SWEEP_S)

    async def _read_answers(self, server: ForkServerHandle) -> None:
        try:
            async for answer in server.read_answers():
                self._handle_answer(server, answer)
        except Malformed as error:
            with contextlib.suppress(OSError), self._run_dir.log(LOG).open("a") as log:
                log.write(f"the agent ended the fork server: {escape_line(str(error))}\n")
            server.child.kill()

    def _handle_answer(self, server: ForkServerHandle, answer: ForkAnswer) -> None:
        rank = LocalRank(answer.worker, answer.local)
        match answer.event:
            case "ready":
                server.state = "ready"
                self._report(ServerReady())
            case "started":
                self.pids[rank] = answer.pid
            case "exited":
                self.pids.pop(rank, None)
                self._report(RankExited(answer.generation, rank, answer.code))
            case "gone":
                self._report(WorldGone(answer.generation))

    def _build_start(self, world: World, rank: LocalRank, address: WorldAddress) -> ProcessStart:
        log = name_rank_log(rank.worker, rank.local, world.rules.processes)
        error_file = find_error_file(self._run_dir, log, world.generation)
        return ProcessStart(
            worker=rank.worker,
            local=rank.local,
            place=world.workers.index(rank.worker),
            environment=self._contract.environment
            | build_rank_environment(world, rank, address, os.environ)
            | {"TORCHELASTIC_ERROR_FILE": str(error_file), RUN_DIRECTORY: str(self._run_dir.root)},
            log=log,
        )


def name_rank_log(worker: WorkerId, local: int, processes: int) -> str:
    """Return the name of a process's log: ``worker-2``, or ``worker-2-1`` of several in a worker."""
    return f"worker-{worker}" + (f"-{local}" if processes > 1 else "")
