"""The agent of a run, which keeps a coordinator, a fork server and the requested workers running."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine
from functools import partial

import msgspec

from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Malformed
from elastane.run.agent.control_link import REPORT_EVERY_S, ControlLink
from elastane.run.agent.coordinators import Coordinators
from elastane.run.agent.directory_guard import DirectoryGuard
from elastane.run.agent.fork_server import ForkServerHandle
from elastane.run.agent.hang_detection import READ_EVERY_S, HeartbeatFile
from elastane.run.agent.head_start import open_lifeline
from elastane.run.agent.processes import Commands, start_coordinator, start_fork_server
from elastane.run.agent.restarts import Deaths
from elastane.run.agent.worker_set import WorkerSet
from elastane.run.agent.workers import WorkerProcesses
from elastane.run.connections.endpoint import CoordinatorEndpoint, read_secret
from elastane.run.machines.claims.terms import SUPERSEDED_CODE
from elastane.run.nouns.control import (
    AgentReport,
    HandOver,
    KillWorker,
    LeaveRecorded,
    ProcessInfo,
    RunOver,
    SetTarget,
    ToAgent,
)
from elastane.run.nouns.machine_address import LOOPBACK_ONLY
from elastane.run.nouns.membership import NUMBERS_AT_ONCE
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import Resumed, RunSpec, number_attempt
from elastane.run.observability.tail import read_end_of_text

BACKLOG = 512
LEAVE_S = {0: 10.0, 1: 3.0, 130: 10.0}
"""The seconds that workers may take to leave, by the exit code of the run."""
OTHER_LEAVE_S = 2.0
LAST_MESSAGES_S = 0.2
SHOWN_LOG_BYTES = 10_000
CHECK_DIRECTORY_EVERY_S = 0.5


class Agent:
    """Runs one run to its end.

    Args:
        run_dir: with ``run.json``, ``secret`` and ``logs/`` in place and the lock taken.
        resumed: the beginning of this attempt; None: it is the first attempt of the run.

    Attributes:
        told_over: the coordinator has said that the run is over.
    """

    def __init__(
        self,
        run_dir: RunDir,
        spec: RunSpec,
        commands: Commands | None = None,
        resumed: Resumed | None = None,
    ) -> None:
        self._run_dir = run_dir
        self.spec = spec
        self._commands = commands or Commands()
        self._first_term = 1 if resumed is None else resumed.first_term
        self._attempt = number_attempt(resumed)
        self._stopping = self.told_over = False
        self._coordinators: Coordinators | None = None
        self._fork_server: ForkServerHandle | None = None
        self._over: RunOver | None = None
        self._finished = asyncio.Event()
        self._changed = asyncio.Event()
        first = 0 if resumed is None else resumed.first_worker
        self.workers = WorkerProcesses(
            WorkerSet(
                target=spec.start, numbers=((first, first + NUMBERS_AT_ONCE),), processes=spec.processes
            ),
            debug=spec.debug,
            end_s=spec.end_s,
            changed=self._changed,
            end_run=self.finish,
        )

    # -- control by the command line ------------------------------------------------------------------------

    @property
    def target(self) -> int:
        """The number of workers that the coordinator requested last."""
        return self.workers.worker_set.target

    def stop(self) -> None:
        """Stop the run at the next commit; the model is written."""
        self._stopping = True
        self.workers.stop_starting()
        self._changed.set()

    def kill(self) -> None:
        """Kill every process of the run."""
        self.workers.skip_grace()
        self.finish(RunOver(code=130, why="killed by the user"))

    async def run(self) -> RunOver:
        """Run until the end of the attempt and of all its processes; return the outcome.

        Raises:
            OSError: a file, a socket or a process could not be created.
            RunDirectoryLost: the run directory was removed, moved or replaced.
        """
        self._group = asyncio.TaskGroup()
        self._guard = DirectoryGuard(self._run_dir, shared=bool(self.spec.listen))
        heartbeats = HeartbeatFile(self._run_dir.node_files.beats, self.spec.processes)
        self.workers.open(self._group, heartbeats)
        self._lifeline, lifeline_end = open_lifeline()
        try:
            over = await self._run_until_end()
            # The loss of the directory may have ended the run just before the guard noticed it.
            if (lost := self._guard.check()) is not None:
                raise lost
        except ExceptionGroup as group:
            if (lost := self._guard.check()) is not None:
                raise lost from group
            raise next((error for error in group.exceptions if isinstance(error, OSError)), group) from None
        finally:
            # The remaining processes notice the end of the run when this pipe closes.
            os.close(lifeline_end)
            os.close(self._lifeline)
            heartbeats.close()
            self._guard.close()
        return over

    # -- the parts ------------------------------------------------------------------------------------------

    async def _run_until_end(self) -> RunOver:
        with LOOPBACK_ONLY.listen(BACKLOG) as listening:
            host, port = listening.getsockname()[:2]
            endpoint = CoordinatorEndpoint(host, port, attempt=self._attempt)
            self._run_dir.endpoint.write_bytes(msgspec.json.encode(endpoint))
            try:
                return await self._serve_until_end(
                    self._make_link(lambda: endpoint), self._keep_coordinator(listening.fileno())
                )
            finally:
                if self._guard.check() is None:
                    self._run_dir.endpoint.unlink(missing_ok=True)

    def _make_link(
        self, find_endpoint: Callable[[], CoordinatorEndpoint], report_every_s: float = REPORT_EVERY_S
    ) -> ControlLink:
        return ControlLink(
            find_endpoint,
            read_secret(self._run_dir),
            self.make_report,
            self.handle_order,
            self._changed,
            silence=self.spec.silence,
            log=partial(self._write_log, "coordinator"),
            report_every_s=report_every_s,
        )

    async def _serve_until_end(self, link: ControlLink, keeper: Coroutine[None, None, None]) -> RunOver:
        """Run all parts, of which the keeper watches over the coordinator, until the end of the run."""
        async with self._group as group:
            services = [
                group.create_task(keeper),
                group.create_task(link.run()),
                group.create_task(self.workers.watch_heartbeats()),
                group.create_task(self._watch_directory()),
            ]
            group.create_task(self._keep_fork_server())
            over = await self._wait_for_end()
            await self.workers.end(LEAVE_S.get(over.code, OTHER_LEAVE_S))
            for task in services:
                task.cancel()
        return over

    async def _wait_for_end(self) -> RunOver:
        while self._over is None:
            await self._finished.wait()
        return self._over

    async def _keep_coordinator(self, socket_fd: int) -> None:
        start = partial(
            start_coordinator, self._commands, self._run_dir, socket_fd=socket_fd, lifeline=self._lifeline
        )
        self._coordinators = Coordinators(start, self._changed.set, self._first_term, self._attempt)
        code, deaths = await self._coordinators.keep()
        if code == SUPERSEDED_CODE:
            # Both would write the same files, so this attempt gives way.
            log = self._run_dir.node_files.log("coordinator")
            why = f"another coordinator has claimed a higher term; see {log}"
            self.finish(RunOver(code=1, why=why))
        else:
            self._give_up("coordinator", code, deaths)

    async def _keep_fork_server(self) -> None:
        deaths = Deaths(within_s=60)
        while True:
            child = start_fork_server(
                self._commands,
                self._run_dir,
                lifeline=self._lifeline,
                attempt=self._attempt,
                threads=self.spec.threads,
                numerics=self.spec.numerics,
                debug=self.spec.debug,
            )
            self._fork_server = ForkServerHandle(child)
            self.workers.attach_fork_server(self._fork_server)
            try:
                reading = self._group.create_task(self._read_answers(self._fork_server))
                code = await child.wait()
                # A worker may have inherited the server's output and keep it open.
                await asyncio.wait((reading,), timeout=LAST_MESSAGES_S)
                reading.cancel()
            finally:
                child.kill()
                await child.wait()
                child.close()
                self._fork_server = None
                self.workers.detach_fork_server()
            deaths = deaths.add(time.monotonic(), code)
            if self._over is None and deaths.too_many:
                self._give_up("fork-server", code, deaths)
            if self._over is not None:
                return

    async def _read_answers(self, fork_server: ForkServerHandle) -> None:
        try:
            async for answer in fork_server.read_answers():
                self.workers.handle_answer(answer)
        except Malformed as error:
            # Its workers keep running, and another fork server follows.
            self._write_log(
                "fork-server", f"the agent ended the fork server {fork_server.child.pid}: {error}"
            )
            fork_server.child.kill()

    async def _watch_directory(self) -> None:
        while True:
            # Check in a thread: a file system that hangs must not delay the reading of heartbeats.
            lost = await asyncio.to_thread(self._guard.check)
            if lost is not None:
                break
            await asyncio.sleep(CHECK_DIRECTORY_EVERY_S if self._guard.complete else READ_EVERY_S)
        # End at once: a step counts only when its line is in the ledger, and no more lines reach the ledger.
        self.workers.skip_grace()
        self.finish(RunOver(code=1, why=lost.what))

    # -- the coordinator ------------------------------------------------------------------------------------

    def handle_order(self, message: ToAgent) -> None:
        """Carry out a message from the coordinator."""
        match message:
            case SetTarget():
                self.workers.set_target(message)
            case KillWorker(worker=worker, why=why):
                self.workers.kill(worker, why)
            case RunOver():
                self.told_over = True
                self.finish(message)
            case LeaveRecorded() | HandOver():
                # Only a machine among several leaves a run.
                pass

    def make_report(self) -> AgentReport:
        """Return the present report to the coordinator."""
        fork_server, coordinators, worker_set = self._fork_server, self._coordinators, self.workers.worker_set
        standby = None if coordinators is None else coordinators.standby_pid
        return AgentReport(
            pid=os.getpid(),
            target=worker_set.target,
            term=0 if coordinators is None else coordinators.term,
            numbers=worker_set.numbers,
            total=worker_set.total,
            nodes=worker_set.nodes,
            workers=self.workers.list_processes(),
            fork_servers=()
            if fork_server is None
            else (ProcessInfo(role="fork-server", pid=fork_server.child.pid, state=fork_server.state),),
            standby=()
            if standby is None
            else (ProcessInfo(role="coordinator", pid=standby, state="standby"),),
            exits=worker_set.exits,
            draining=worker_set.draining,
            stopping=self._stopping,
            awaiting_data=self.workers.awaiting_data,
            importing=self.workers.importing,
            by_hand=worker_set.by_hand,
            claimed=worker_set.claimed,
            closed=worker_set.closed,
        )

    # -- the end --------------------------------------------------------------------------------------------

    def finish(self, over: RunOver) -> None:
        """End the run on this machine with an outcome; the first one counts."""
        if self._over is None:
            self._over = over
        self.workers.stop_starting()
        self._finished.set()

    def _give_up(self, process: str, code: int, deaths: Deaths) -> None:
        what = f"the {process} process died {len(deaths.times)} times within {deaths.within_s:.0f} s"
        why = f"{what}, the last time with exit code {code}; {self._describe_log_end(process)}"
        self.finish(RunOver(code=1, why=why))

    def _describe_log_end(self, process: str) -> str:
        log = self._run_dir.node_files.log(process)
        last = (read_end_of_text(self._run_dir.files, log, SHOWN_LOG_BYTES).splitlines() or ["nothing"])[-1]
        return f"{log} ends with: {last}"

    def _write_log(self, process: str, line: str) -> None:
        """Append a line to the log of a process, unless the disk is full."""
        with contextlib.suppress(OSError), self._run_dir.node_files.log(process).open("a") as log:
            log.write(f"{escape_line(line)}\n")
