"""The agent of a run under the contract of torchrun: it acts on `elastane.run.scripts.worlds.decisions`."""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import msgspec

from elastane.common.exit_codes import ExitCode
from elastane.common.log_lines import LogFile, configure_handler
from elastane.run.agent.directory_guard import DirectoryGuard
from elastane.run.connections.endpoint import CoordinatorEndpoint, read_secret
from elastane.run.coordinator.actions import CommandRequest
from elastane.run.coordinator.connections import Connections
from elastane.run.coordinator.record_files import AppendFile
from elastane.run.coordinator.refusals import find_refusal
from elastane.run.nouns.control import Answer, Ask, AskEvict, AskStop, ProcessInfo, RunOver
from elastane.run.nouns.records import OUTCOMES, EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import Resumed, RunSpec, TorchrunContract
from elastane.run.scripts.agent.failure_report import read_failure
from elastane.run.scripts.agent.rank_processes import RankProcesses, name_rank_log
from elastane.run.scripts.agent.status import build_world_status, describe_changeable
from elastane.run.scripts.worlds.decisions import advance, find_next_time
from elastane.run.scripts.worlds.messages import (
    AnnounceStop,
    EndRun,
    KillWorld,
    OutputSeen,
    RecordChange,
    StartWorld,
    WorldAction,
    WorldInput,
    WorldRequest,
)
from elastane.run.scripts.worlds.state import LocalRank, Over, World, WorldRules

LOOPBACK = "127.0.0.1"
BACKLOG = 512
CHECK_DIRECTORY_EVERY_S = 0.5
LOOK_S, LOOKS = 2.0, 10
"""The logs are looked at every two seconds, or ten times within a shorter limit of their silence."""


@dataclass(frozen=True, slots=True)
class _Lost:
    """The run cannot continue, for a reason outside its script."""

    why: str


class ScriptAgent:
    """Runs one attempt of an unmodified script to its end.

    Args:
        run_dir: with ``run.json``, ``secret`` and ``logs/`` in place and the lock taken.
        spec: of the run, with a contract.
        resumed: the beginning of this attempt; None: it is the first attempt of the run.
        command: of the fork server.
    """

    def __init__(
        self,
        run_dir: RunDir,
        spec: RunSpec,
        resumed: Resumed | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        self._run_dir = run_dir
        self._spec = spec
        self._contract = spec.contract or TorchrunContract()
        self._earlier = resumed
        self._world = World(
            WorldRules(
                self._contract.processes,
                grace_s=self._contract.grace_s,
                max_restarts=self._contract.max_restarts,
                stall_s=self._contract.stall_s,
            ),
            target=spec.start,
            next_worker=0 if resumed is None else resumed.first_worker,
        )
        self._inbox: asyncio.Queue[WorldInput | _Lost] = asyncio.Queue()
        self._processes = RankProcesses(
            run_dir,
            spec,
            report=self._inbox.put_nowait,
            give_up=lambda why: self._inbox.put_nowait(_Lost(why)),
            command=command,
        )

    # -- control by the command line ------------------------------------------------------------------------

    @property
    def target(self) -> int:
        """The number of workers that was requested last."""
        return self._world.target

    def stop(self) -> None:
        """Announce the stop to every process, and end the run after the last one."""
        self._inbox.put_nowait(AskStop())

    def kill(self) -> None:
        """Kill every process of the run."""
        self._inbox.put_nowait(AskStop())
        self._inbox.put_nowait(AskEvict())

    async def run(self) -> RunOver:
        """Run until the end of the attempt and of all its processes; return the outcome.

        Raises:
            OSError: a file, a socket or a process could not be created.
            RunDirectoryLost: the run directory was removed, moved or replaced.
        """
        guard = DirectoryGuard(self._run_dir)
        self._lifeline, lifeline_end = os.pipe()
        try:
            self._run_dir.ledger.touch()
            self._events = AppendFile(self._run_dir.events)
            with (
                _log_connections_to(self._run_dir.log("coordinator")),
                socket.create_server((LOOPBACK, 0), backlog=BACKLOG) as listening,
            ):
                over = await self._run_until_end(listening, guard)
            if (lost := guard.check()) is not None:
                raise lost
        except ExceptionGroup as group:
            if (lost := guard.check()) is not None:
                raise lost from group
            raise next((error for error in group.exceptions if isinstance(error, OSError)), group) from None
        finally:
            # The fork server notices the end of the run when this pipe closes.
            os.close(lifeline_end)
            os.close(self._lifeline)
            guard.close()
        return over

    # -- the parts ------------------------------------------------------------------------------------------

    async def _run_until_end(self, listening: socket.socket, guard: DirectoryGuard) -> RunOver:
        listening.setblocking(False)
        address = listening.getsockname()
        self._run_dir.endpoint.write_bytes(msgspec.json.encode(CoordinatorEndpoint(*address)))
        self._record_start()
        try:
            async with asyncio.TaskGroup() as group:
                services = [
                    group.create_task(self._serve_requests(listening)),
                    group.create_task(self._watch_directory(guard)),
                    group.create_task(self._watch_output()),
                ]
                serving = group.create_task(self._processes.keep(self._lifeline))
                over = await self._decide_until_end()
                self._processes.end()
                await serving
                for task in services:
                    task.cancel()
        finally:
            if guard.check() is None:
                self._run_dir.endpoint.unlink(missing_ok=True)
            self._events.close()
        return over

    async def _decide_until_end(self) -> RunOver:
        """Decide after each input and each deadline, until the run is over."""
        inputs: list[WorldInput] = []
        while True:
            self._world, actions = advance(self._world, inputs, time.monotonic())
            if (over := self._carry_out(actions)) is not None:
                return over
            self._events.flush()
            received = await self._receive()
            if lost := next((entry for entry in received if isinstance(entry, _Lost)), None):
                return self._end_lost(lost.why)
            inputs = [entry for entry in received if not isinstance(entry, _Lost)]

    async def _receive(self) -> list[WorldInput | _Lost]:
        """Return the inputs that have arrived; empty when it is time to decide without any."""
        due_s = find_next_time(self._world)
        wait_s = None if due_s is None else max(0.0, due_s - time.monotonic())
        try:
            async with asyncio.timeout(wait_s):
                received = [await self._inbox.get()]
        except TimeoutError:
            return []
        while not self._inbox.empty():
            received.append(self._inbox.get_nowait())
        return received

    async def _serve_requests(self, listening: socket.socket) -> None:
        """Answer requests; this process is the parent of all others, so no coordinator has to outlive it."""
        connections = Connections()
        async with connections.listen(listening, read_secret(self._run_dir)):
            while True:
                received = await connections.inbox.get()
                # Messages of workers and agents have no meaning here.
                if isinstance(received, CommandRequest):
                    connections.reply(received.token, self._answer(received.ask))

    async def _watch_directory(self, guard: DirectoryGuard) -> None:
        while True:
            # Check in a thread: a file system that hangs must not delay decisions.
            if (lost := await asyncio.to_thread(guard.check)) is not None:
                self._inbox.put_nowait(_Lost(lost.what))
                return
            await asyncio.sleep(CHECK_DIRECTORY_EVERY_S)

    async def _watch_output(self) -> None:
        """Report each growth of a log, if a limit of the silence of the script needs it."""
        if self._contract.stall_s is None:
            return
        known = _OutputSizes(self._run_dir, self._contract.processes)
        while True:
            await asyncio.sleep(min(LOOK_S, self._contract.stall_s / LOOKS))
            world = self._world
            if await asyncio.to_thread(known.update, world.ranks):
                self._inbox.put_nowait(OutputSeen(world.generation))

    # -- actions --------------------------------------------------------------------------------------------

    def _carry_out(self, actions: Iterable[WorldAction]) -> RunOver | None:
        for action in actions:
            match action:
                case StartWorld():
                    self._processes.start(self._world)
                case AnnounceStop():
                    self._processes.signal(signal.SIGTERM)
                case KillWorld():
                    self._processes.signal(signal.SIGKILL)
                case RecordChange():
                    self._record(action)
                case EndRun(over=over):
                    return self._end(over)
                case _:
                    assert_never(action)
        return None

    def _record_start(self) -> None:
        if self._earlier is None:
            self._record(RecordChange("run.started", "agent", self._spec.script))
        detail = {"term": 1 if self._earlier is None else self._earlier.first_term, "pid": os.getpid()}
        self._record(RecordChange("coordinator.started", "agent", "as a part of the agent", detail=detail))

    def _record(self, change: RecordChange) -> None:
        event = EventLine(
            time=time.time(),
            kind=change.kind,
            who=change.who,
            why=change.why,
            generation=self._world.generation or None,
            workers=change.workers,
            detail=change.detail,
        )
        self._events.append(msgspec.json.encode(event))

    def _end(self, over: Over) -> RunOver:
        traceback = ""
        if over.failure is not None:
            generation, rank, _ = over.failure
            log = name_rank_log(rank.worker, rank.local, self._contract.processes)
            traceback = read_failure(self._run_dir, log, generation)
        detail = {"traceback": traceback} if traceback else {}
        self._record(RecordChange(over.kind, self._world.stop_who or "agent", over.why, detail=detail))
        self._events.flush()
        return RunOver(code=OUTCOMES[over.kind], why=over.why, traceback=traceback)

    def _end_lost(self, why: str) -> RunOver:
        """End the run at once: the fork server kills every process when it ends."""
        self._record(RecordChange("run.failed", "agent", why))
        self._events.flush()
        return RunOver(code=ExitCode.FAILED, why=why)

    # -- requests -------------------------------------------------------------------------------------------

    def _answer(self, ask: Ask) -> Answer:
        refusal = find_refusal(describe_changeable(self._world), self._spec, ask)
        if not refusal and isinstance(ask, WorldRequest):
            self._inbox.put_nowait(ask)
        return build_world_status(
            self._world, self._spec, self._processes.pids, self._list_own_processes(), why=refusal
        )

    def _list_own_processes(self) -> tuple[ProcessInfo, ...]:
        agent = ProcessInfo(role="agent", pid=os.getpid(), state="running")
        server = self._processes.server
        return (agent,) if server is None else (agent, server)


class _OutputSizes:
    """Remembers how large each log was.

    Args:
        processes: of each worker.
    """

    def __init__(self, run_dir: RunDir, processes: int) -> None:
        self._run_dir, self._processes = run_dir, processes
        self._sizes: dict[LocalRank, int] = {}

    def update(self, ranks: Iterable[LocalRank]) -> bool:
        """Return whether a log of these processes has another size than at the last call."""
        sizes = {rank: self._read_size(rank) for rank in ranks}
        changed = any(size != self._sizes.get(rank) for rank, size in sizes.items())
        self._sizes = sizes
        return changed

    def _read_size(self, rank: LocalRank) -> int:
        log = self._run_dir.log(name_rank_log(rank.worker, rank.local, self._processes))
        try:
            return log.lstat().st_size
        except OSError:
            return 0


@contextmanager
def _log_connections_to(path: Path) -> Iterator[None]:
    """Write warnings about connections to a file instead of the terminal."""
    handler = configure_handler(LogFile(path, delay=True))
    loggers = [logging.getLogger(name) for name in ("elastane.run.coordinator", "websockets.server")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = True
        handler.close()
