"""The agent: keeps a coordinator, a fork server and as many workers alive as the coordinator wants."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from dataclasses import replace
from functools import partial

import msgspec

from elastane.agent.control_link import ControlLink
from elastane.agent.coordinators import Coordinators
from elastane.agent.directory_guard import DirectoryGuard
from elastane.agent.fork_server import (
    ForkServerHandle,
    ForkServerMessage,
    ForkServerReady,
    WorkerExited,
    WorkerForked,
)
from elastane.agent.hang_detection import (
    READ_EVERY_S,
    HeartbeatFile,
    Pulse,
    is_awaiting_data,
    is_hung,
    update_pulse,
)
from elastane.agent.processes import Commands, Watch, start_coordinator, start_fork_server
from elastane.agent.restarts import Deaths
from elastane.agent.worker_set import (
    WorkerSet,
    keep_missing_requests,
    record_exit,
    record_start,
    request_missing,
)
from elastane.api.control import (
    AgentReport,
    KillWorker,
    ProcessInfo,
    RunOver,
    SetTarget,
    ToAgent,
    WorkerExit,
)
from elastane.api.endpoint import CoordinatorEndpoint, read_secret
from elastane.api.exit_codes import ExitCode
from elastane.api.membership import WorkerId
from elastane.api.rundir import RunDir
from elastane.api.safe_text import escape_line
from elastane.api.spec import Resumed, RunSpec
from elastane.api.untrusted_data import Malformed

LOOPBACK = "127.0.0.1"
BACKLOG = 512
FAREWELL_S: dict[int, float] = {ExitCode.OK: 10.0, ExitCode.FAILED: 3.0, ExitCode.STOPPED_BY_USER: 10.0}
GRACE_S = 2.0
EXIT_CODE_S = 0.5
LAST_WORDS_S = 0.2
START_AGAIN_S = 1.0
CHECK_EVERY_S = 0.5
KILLED = -int(signal.SIGKILL)


class Agent:
    """Runs one run to its end.

    Args:
        run_dir: with ``run.json``, ``secret`` and ``logs/`` in place and the lock taken.
        spec: of the run.
        commands: how processes are started.
        resumed: what this attempt of the run begins with; None: it is its first.
    """

    def __init__(
        self,
        run_dir: RunDir,
        spec: RunSpec,
        commands: Commands | None = None,
        resumed: Resumed | None = None,
    ) -> None:
        self._run_dir = run_dir
        self._spec = spec
        self._commands = commands or Commands()
        self._staff = WorkerSet(target=spec.start, following=0 if resumed is None else resumed.first_worker)
        self._first_term = 1 if resumed is None else resumed.first_term
        self._stopping = False
        self._coordinators: Coordinators | None = None
        self._fork_server: ForkServerHandle | None = None
        self._watches: dict[WorkerId, Watch] = {}
        self._codes: dict[WorkerId, asyncio.Future[int]] = {}
        self._pulses: dict[WorkerId, Pulse] = {}
        self._hung: set[WorkerId] = set()
        self._awaiting_data: tuple[WorkerId, ...] = ()
        self._reasons: dict[WorkerId, str] = {}
        self._over: RunOver | None = None
        self._finished = asyncio.Event()
        self._killed = asyncio.Event()
        self._news = asyncio.Event()

    # -- what the command line calls ------------------------------------------------------------------------

    @property
    def target(self) -> int:
        """Workers that it aims at, as it was told last."""
        return self._staff.target

    def drain(self) -> None:
        """The run stops at the next commit, and the model is written."""
        self._stopping = True
        self._news.set()

    def kill(self) -> None:
        """Everything ends now."""
        self._killed.set()
        self._finish(RunOver(code=ExitCode.STOPPED_BY_USER, why="killed by the user"))

    async def run(self) -> RunOver:
        """Returns how the run ended; every process it started has ended by then.

        Raises:
            OSError: a file, a socket or a process could not be made.
            RunDirectoryLost: the run directory was removed, moved or replaced.
        """
        self._group = asyncio.TaskGroup()
        self._guard = DirectoryGuard(self._run_dir)
        self._beats = HeartbeatFile(self._run_dir.beats)
        self._lifeline, lifeline_end = os.pipe()
        try:
            with socket.create_server((LOOPBACK, 0), backlog=BACKLOG) as listening:
                over = await self._run_on(listening)
            # Whatever ended the run may have come of it, a moment before this was noticed.
            if (lost := self._guard.check()) is not None:
                raise lost
        except ExceptionGroup as group:
            if (lost := self._guard.check()) is not None:
                raise lost from group
            raise next((error for error in group.exceptions if isinstance(error, OSError)), group) from None
        finally:
            # Whoever is left, if anybody, reads the end of the run here.
            os.close(lifeline_end)
            os.close(self._lifeline)
            self._beats.close()
            self._guard.close()
        return over

    # -- the parts ------------------------------------------------------------------------------------------

    async def _run_on(self, listening: socket.socket) -> RunOver:
        address = listening.getsockname()
        secret = read_secret(self._run_dir)
        complain = partial(self._write_log, "coordinator")
        link = ControlLink(address, secret, self._report, self._hear, self._news, complain=complain)
        self._run_dir.endpoint.write_bytes(msgspec.json.encode(CoordinatorEndpoint(*address)))
        try:
            async with self._group as group:
                keeping = [
                    group.create_task(self._keep_coordinator(listening.fileno())),
                    group.create_task(link.run()),
                    group.create_task(self._watch_beats()),
                    group.create_task(self._watch_directory()),
                ]
                group.create_task(self._keep_fork_server())
                over = await self._outcome()
                await self._say_farewell(over)
                for task in keeping:
                    task.cancel()
        finally:
            if self._guard.check() is None:
                self._run_dir.endpoint.unlink(missing_ok=True)
        return over

    async def _outcome(self) -> RunOver:
        while self._over is None:
            await self._finished.wait()
        return self._over

    async def _keep_coordinator(self, socket_fd: int) -> None:
        start = partial(
            start_coordinator, self._commands, self._run_dir, socket_fd=socket_fd, lifeline=self._lifeline
        )
        self._coordinators = Coordinators(start, self._news.set, self._first_term)
        code, deaths = await self._coordinators.keep()
        self._give_up("coordinator", code, deaths)

    async def _keep_fork_server(self) -> None:
        deaths = Deaths(within_s=60)
        while True:
            child = start_fork_server(
                self._commands,
                self._run_dir,
                lifeline=self._lifeline,
                threads=self._spec.threads,
                debug=self._spec.debug,
            )
            self._fork_server = ForkServerHandle(child)
            try:
                listening = self._group.create_task(self._listen_to(self._fork_server))
                code = await child.ended()
                # A worker may have inherited its output, and keep it open.
                await asyncio.wait((listening,), timeout=LAST_WORDS_S)
                listening.cancel()
            finally:
                child.kill()
                await child.ended()
                child.close()
                self._fork_server = None
                self._orphan()
            deaths = deaths.another(time.monotonic(), code)
            if self._over is None and deaths.too_many:
                self._give_up("fork-server", code, deaths)
            if self._over is not None:
                return

    async def _listen_to(self, fork_server: ForkServerHandle) -> None:
        try:
            async for message in fork_server.messages():
                self._handle_fork_server_message(message)
        except Malformed as error:
            # Its workers live on, and another server follows.
            self._write_log(
                "fork-server", f"the agent ended the fork server {fork_server.child.pid}: {error}"
            )
            fork_server.child.kill()

    def _write_log(self, process: str, line: str) -> None:
        """Append a line to the log of a process; a full disk takes nothing more."""
        with contextlib.suppress(OSError), self._run_dir.log(process).open("a") as log:
            log.write(f"{escape_line(line)}\n")

    def _give_up(self, process: str, code: int, deaths: Deaths) -> None:
        what = f"the {process} process died {len(deaths.times)} times within {deaths.within_s:.0f} s"
        log = self._run_dir.log(process)
        last = (log.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1]
        why = f"{what}, the last time with exit code {code}; {log} ends with: {last}"
        self._finish(RunOver(code=1, why=why))

    # -- workers --------------------------------------------------------------------------------------------

    def _hire(self) -> None:
        fork_server = self._fork_server
        # One that still imports would start them much later, however few are wanted by then.
        if self._over is not None or self._stopping or fork_server is None or fork_server.state != "ready":
            return
        if self._spec.debug and self._staff.exits:
            return  # nobody replaces a worker under a debugger
        self._staff, numbers = request_missing(self._staff)
        for worker in numbers:
            self._beats.clear(worker)
            fork_server.ask(worker)

    def _handle_fork_server_message(self, message: ForkServerMessage) -> None:
        match message:
            case ForkServerReady():
                if self._fork_server is not None:
                    self._fork_server.state = "ready"
                    self._staff = keep_missing_requests(self._staff)
                    for worker in self._staff.asked:
                        self._fork_server.ask(worker)
                self._hire()
            case WorkerForked(worker, pid):
                self._staff = record_start(self._staff, worker, pid)
                self._codes[worker] = asyncio.get_running_loop().create_future()
                self._group.create_task(self._watch_worker(worker, pid))
            case WorkerExited(worker, 0, code):
                # The fork server could not fork it. The machine needs a moment, and the coordinator counts.
                self._staff = record_exit(self._staff, WorkerExit(worker=worker, pid=0, code=code))
                asyncio.get_running_loop().call_later(START_AGAIN_S, self._hire)
            case WorkerExited(worker, _, code):
                future = self._codes.get(worker)
                if future is not None and not future.done():
                    future.set_result(code)
        self._news.set()

    async def _watch_worker(self, worker: WorkerId, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            watch = self._watches[worker] = Watch(pid)
            try:
                if not self._killed.is_set():
                    await watch.ended()
            finally:
                watch.send(signal.SIGKILL)
                watch.close()
        code = await self._exit_code(worker)
        self._watches.pop(worker, None)
        self._pulses.pop(worker, None)
        self._codes.pop(worker, None)
        # What ended before our signal came has a reason of its own.
        why = self._reasons.get(worker, "") if code == KILLED else ""
        self._staff = record_exit(
            self._staff, WorkerExit(worker=worker, pid=pid, code=code, hung=worker in self._hung, why=why)
        )
        self._hire()
        self._news.set()
        if self._spec.debug:
            # The coordinator, if it knows more, is quicker.
            how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
            over = RunOver(code=1, why=f"worker {worker} ended ({how}), and --debug replaces no worker")
            asyncio.get_running_loop().call_later(GRACE_S, self._finish, over)

    async def _exit_code(self, worker: WorkerId) -> int:
        """Only its parent, the fork server, learns it; without one, a worker counts as killed."""
        try:
            async with asyncio.timeout(EXIT_CODE_S):
                return await self._codes[worker]
        except TimeoutError:
            return KILLED

    def _orphan(self) -> None:
        """Nobody will ever tell the exit codes of those whose fork server has died."""
        for code in self._codes.values():
            if not code.done():
                code.set_result(KILLED)

    async def _watch_beats(self) -> None:
        while True:
            now = time.monotonic()
            for worker, watch in self._watches.items():
                pulse = update_pulse(self._pulses.get(worker), *self._beats.read(worker), now)
                self._pulses[worker] = pulse
                if is_hung(pulse, now) and watch.alive and not self._spec.debug:
                    self._hung.add(worker)
                    self._end(worker, f"hung: no heartbeat for {now - pulse.moved_s:.1f} s")
            awaiting = tuple(
                w
                for w, pulse in sorted(self._pulses.items())
                if is_awaiting_data(pulse, now) and not self._spec.debug
            )
            if awaiting != self._awaiting_data:
                self._awaiting_data = awaiting
                self._news.set()
            await asyncio.sleep(READ_EVERY_S)

    async def _watch_directory(self) -> None:
        while True:
            # In a thread: a file system that stands still must not stop the heartbeats from being read.
            lost = await asyncio.to_thread(self._guard.check)
            if lost is not None:
                break
            await asyncio.sleep(CHECK_EVERY_S if self._guard.complete else READ_EVERY_S)
        # At once: a step counts when its line is in the ledger, and no line gets there any more.
        self._killed.set()
        self._finish(RunOver(code=1, why=lost.what))

    def _end(self, worker: WorkerId, why: str) -> None:
        watch = self._watches.get(worker)
        if watch is not None and watch.alive:
            self._reasons.setdefault(worker, why)
            watch.send(signal.SIGKILL)

    # -- the coordinator ------------------------------------------------------------------------------------

    def _hear(self, message: ToAgent) -> None:
        match message:
            case SetTarget(target=target, drain=drain, by_hand=by_hand):
                self._staff = replace(self._staff, target=target, draining=drain, by_hand=by_hand)
                self._hire()
                self._news.set()
            case KillWorker(worker=worker, why=why):
                self._end(worker, why)
            case RunOver():
                self._finish(message)

    def _report(self) -> AgentReport:
        fork_server, coordinators = self._fork_server, self._coordinators
        standby = None if coordinators is None else coordinators.standby_pid
        return AgentReport(
            pid=os.getpid(),
            target=self._staff.target,
            term=0 if coordinators is None else coordinators.term,
            workers=tuple(
                ProcessInfo(role="worker", pid=pid, worker=worker)
                for worker, pid in sorted(self._staff.living.items())
            ),
            fork_servers=()
            if fork_server is None
            else (ProcessInfo(role="fork-server", pid=fork_server.child.pid, state=fork_server.state),),
            standby=()
            if standby is None
            else (ProcessInfo(role="coordinator", pid=standby, state="standby"),),
            exits=self._staff.exits,
            draining=self._staff.draining,
            stopping=self._stopping,
            awaiting_data=self._awaiting_data,
            by_hand=self._staff.by_hand,
        )

    # -- the end --------------------------------------------------------------------------------------------

    def _finish(self, over: RunOver) -> None:
        if self._over is None:
            self._over = over
        self._finished.set()

    async def _say_farewell(self, over: RunOver) -> None:
        """Dismissed workers leave by themselves; whoever has not after a while is ended."""
        waiting = [asyncio.create_task(self._all_left()), asyncio.create_task(self._killed.wait())]
        grace_s = FAREWELL_S.get(over.code, GRACE_S)
        await asyncio.wait(waiting, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        self._killed.set()
        for watch in self._watches.values():
            watch.send(signal.SIGKILL)
        if self._fork_server is not None:
            # What it has said until its end is still heard: a worker it forked just now is ended too.
            self._fork_server.child.kill()

    async def _all_left(self) -> None:
        for watch in list(self._watches.values()):
            await watch.ended()
