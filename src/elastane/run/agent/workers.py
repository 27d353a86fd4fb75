"""The worker processes of a run: requested from the fork server, watched, and killed when they hang."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Mapping

from elastane.common.untrusted_data import Malformed
from elastane.run.agent.activities import WorkerLooks
from elastane.run.agent.fork_server import ForkAnswer, ForkServerHandle, ProcessStart
from elastane.run.agent.further_processes import KILLED, FurtherProcesses, wait_for_code
from elastane.run.agent.hang_detection import (
    READ_EVERY_S,
    HeartbeatFile,
    Pulse,
    is_awaiting_data,
    is_hung,
    is_importing,
    measure_silence,
    update_pulse,
)
from elastane.run.agent.processes import ProcessWatch
from elastane.run.agent.worker_set import (
    WorkerSet,
    follow_order,
    has_other_nodes,
    keep_missing_requests,
    record_exit,
    record_start,
    request_missing,
)
from elastane.run.nouns.control import ProcessInfo, RunOver, SetTarget, WorkerExit
from elastane.run.nouns.heartbeat_file import Phase
from elastane.run.nouns.membership import WorkerId

DEBUG_GRACE_S = 2.0
RETRY_FORK_S = 1.0
END_MARGIN_S = 2.0
"""How much longer the agent waits for the end of a process, which kills itself and says where it is."""


class WorkerProcesses:
    """Starts as many workers as requested and watches each of them to its end.

    Args:
        debug: the only worker is under a debugger: it is never hung and never replaced.
        end_s: how long the process of a worker may take to end after its script.
        changed: set whenever there is something new to report.
        end_run: called once a worker under a debugger has ended.
    """

    def __init__(
        self,
        worker_set: WorkerSet,
        *,
        debug: bool,
        end_s: float,
        changed: asyncio.Event,
        end_run: Callable[[RunOver], None],
    ) -> None:
        self.worker_set = worker_set
        self.awaiting_data: tuple[WorkerId, ...] = ()
        self.importing = False
        self._debug, self._end_s = debug, end_s
        self._changed = changed
        self._end_run = end_run
        self._fork_server: ForkServerHandle | None = None
        self._starts_workers = True
        self._killed = asyncio.Event()
        self._watches: dict[WorkerId, ProcessWatch] = {}
        self._codes: dict[WorkerId, asyncio.Future[int]] = {}
        self._pulses: dict[WorkerId, Pulse] = {}
        self._looks: dict[WorkerId, WorkerLooks] = {}
        self._kill_reasons: dict[WorkerId, str] = {}
        self._hung: set[WorkerId] = set()
        self._ends: dict[WorkerId, float] = {}
        """When the process of a worker that ends after its script must have ended, in monotonic seconds."""
        self._further = FurtherProcesses(self.kill, end_s + END_MARGIN_S)
        self._further_pulses: dict[tuple[WorkerId, int], Pulse] = {}

    def open(self, group: asyncio.TaskGroup, heartbeats: HeartbeatFile) -> None:
        """Start watching heartbeats; the group runs the watch of every worker from now on."""
        self._group, self._heartbeats = group, heartbeats

    @property
    def living(self) -> Mapping[WorkerId, int]:
        """Process ids of the running workers."""
        return self.worker_set.living

    def list_processes(self) -> tuple[ProcessInfo, ...]:
        """Return the running workers by number, and what each of them does."""
        now = time.monotonic()
        return tuple(
            ProcessInfo(
                role="worker",
                pid=pid,
                worker=worker,
                activity=looks.compute_shares() if (looks := self._looks.get(worker)) else {},
                silent_s=measure_silence(pulse, now) if (pulse := self._pulses.get(worker)) else 0.0,
                further=tuple(watch.pid for _, watch in self._further.list_watched(worker)),
            )
            for worker, pid in sorted(self.living.items())
        )

    # -- starting -------------------------------------------------------------------------------------------

    def stop_starting(self) -> None:
        """Start no more workers, because the run is stopping or over."""
        self._starts_workers = False

    def set_target(self, order: SetTarget) -> None:
        """Keep the ordered number of workers running from now on."""
        self.worker_set = follow_order(self.worker_set, order)
        self._start_missing()
        self._changed.set()

    def attach_fork_server(self, fork_server: ForkServerHandle) -> None:
        """Request workers from this fork server once it is ready."""
        self._fork_server = fork_server

    def detach_fork_server(self) -> None:
        """Forget the dead fork server; its workers count as killed, as their exit codes stay unknown."""
        self._fork_server = None
        for code in self._codes.values():
            if not code.done():
                code.set_result(KILLED)
        self._further.detach_fork_server()

    def handle_answer(self, answer: ForkAnswer) -> None:
        """Handle an answer of the fork server."""
        match answer:
            case ForkAnswer(event="ready"):
                if self._fork_server is not None:
                    self._fork_server.state = "ready"
                    self.worker_set = keep_missing_requests(self.worker_set)
                    if self.worker_set.requested:
                        self._fork_server.start(self._list_starts(self.worker_set.requested))
                self._start_missing()
            case ForkAnswer(event="started", worker=worker, local=local, pid=pid) if local:
                self._group.create_task(self._further.watch(worker, local, pid))
            case ForkAnswer(event="exited", worker=worker, local=local, pid=0, code=code) if local:
                self._further.fail_start(worker, local, code)
            case ForkAnswer(event="exited", worker=worker, local=local, code=code) if local:
                self._further.take_code(worker, local, code)
            case ForkAnswer(event="started", worker=worker, pid=pid):
                self.worker_set = record_start(self.worker_set, worker, pid)
                self._codes[worker] = asyncio.get_running_loop().create_future()
                self._group.create_task(self._watch(worker, pid))
            case ForkAnswer(event="exited", worker=worker, pid=0, code=code):
                # The fork server could not fork the worker. Retry a little later; the coordinator counts
                # failures.
                self.worker_set = record_exit(self.worker_set, WorkerExit(worker=worker, pid=0, code=code))
                asyncio.get_running_loop().call_later(RETRY_FORK_S, self._start_missing)
            case ForkAnswer(event="exited", worker=worker, code=code):
                future = self._codes.get(worker)
                if future is not None and not future.done():
                    future.set_result(code)
            case _:
                raise Malformed(f"workers have no event {answer.event!r}")
        self._changed.set()

    def _start_missing(self) -> None:
        fork_server = self._fork_server
        # A fork server that still imports would start them later, when fewer may be wanted.
        if not self._starts_workers or fork_server is None or fork_server.state != "ready":
            return
        if self._debug and self.worker_set.exits:
            return
        self.worker_set, numbers = request_missing(self.worker_set)
        for worker in numbers:
            self._heartbeats.clear(worker)
        if numbers:
            fork_server.start(self._list_starts(numbers))

    def _list_starts(self, workers: Iterable[WorkerId]) -> list[ProcessStart]:
        processes = range(self.worker_set.processes)
        return [ProcessStart(worker, process) for worker in workers for process in processes]

    # -- watching -------------------------------------------------------------------------------------------

    async def _watch(self, worker: WorkerId, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            watch = self._watches[worker] = ProcessWatch(pid)
            try:
                if not self._killed.is_set():
                    await watch.wait()
            finally:
                watch.send(signal.SIGKILL)
                watch.close()
        self._further.note_end(worker)
        code = await wait_for_code(self._codes[worker])
        # A worker is gone, and may be replaced, when all of its processes have ended.
        within_s = 0.0 if code else self._end_s + END_MARGIN_S
        await self._further.end(worker, self._killed, within_s=within_s)
        code = self._further.causes.pop(worker, code)
        for process in range(1, self.worker_set.processes):
            self._further_pulses.pop((worker, process), None)
        self._watches.pop(worker, None)
        self._pulses.pop(worker, None)
        self._looks.pop(worker, None)
        self._codes.pop(worker, None)
        self._ends.pop(worker, None)
        # A worker that ended before the agent's signal arrived did not end because of it.
        why = self._kill_reasons.get(worker, "") if code == KILLED else ""
        self.worker_set = record_exit(
            self.worker_set, WorkerExit(worker=worker, pid=pid, code=code, hung=worker in self._hung, why=why)
        )
        self._start_missing()
        self._changed.set()
        if self._debug:
            # If the coordinator knows more, it ends the run first.
            how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
            over = RunOver(code=1, why=f"worker {worker} ended ({how}); with --debug no worker is replaced")
            asyncio.get_running_loop().call_later(DEBUG_GRACE_S, self._end_run, over)

    async def watch_heartbeats(self) -> None:
        """Kill workers that hang, for as long as this is not cancelled."""
        while True:
            now = time.monotonic()
            elsewhere = has_other_nodes(self.worker_set)
            for worker, watch in self._watches.items():
                if worker in self._ends:
                    if now > self._ends[worker]:
                        self.kill(worker, "its process did not end after its script")
                    continue
                pulse = update_pulse(self._pulses.get(worker), *self._heartbeats.read(worker), now)
                self._pulses[worker] = pulse
                self._looks.setdefault(worker, WorkerLooks()).add(pulse.phase)
                if pulse.phase == Phase.ENDING:
                    self._let_end(worker, watch.pid, int(pulse.rhythm_s), now)
                    continue
                peers = (peer for other, peer in self._pulses.items() if other != worker)
                if is_hung(pulse, now, peers, elsewhere=elsewhere) and watch.alive and not self._debug:
                    self._hung.add(worker)
                    self.kill(worker, f"hung: no heartbeat for {now - pulse.moved_s:.1f} s")
                self._look_at_further(worker, now, elsewhere=elsewhere)
            awaiting = tuple(
                worker
                for worker, pulse in sorted(self._pulses.items())
                if is_awaiting_data(pulse, now) and not self._debug
            )
            importing = any(is_importing(pulse, now) for pulse in self._pulses.values())
            if (awaiting, importing) != (self.awaiting_data, self.importing):
                self.awaiting_data, self.importing = awaiting, importing
                self._changed.set()
            await asyncio.sleep(READ_EVERY_S)

    def _look_at_further(self, worker: WorkerId, now: float, *, elsewhere: bool) -> None:
        """Kill a worker of which a process other than process 0 hangs."""
        for process, watch in self._further.list_watched(worker):
            read = self._heartbeats.read(worker, process)
            pulse = update_pulse(self._further_pulses.get((worker, process)), *read, now)
            self._further_pulses[worker, process] = pulse
            peers = (peer for other, peer in self._pulses.items() if other != worker)
            if is_hung(pulse, now, peers, elsewhere=elsewhere) and watch.alive:
                self._hung.add(worker)
                self.kill(worker, f"hung: process {process}: no heartbeat for {now - pulse.moved_s:.1f} s")

    def _let_end(self, worker: WorkerId, pid: int, code: int, now: float) -> None:
        """Count a worker as ended, although its process still runs threads and exit handlers."""
        self._ends[worker] = now + self._end_s + END_MARGIN_S
        self._pulses.pop(worker, None)
        self._looks.pop(worker, None)
        self.worker_set = record_exit(self.worker_set, WorkerExit(worker=worker, pid=pid, code=code))
        self._start_missing()
        self._changed.set()

    # -- ending ---------------------------------------------------------------------------------------------

    def kill(self, worker: WorkerId, why: str) -> None:
        """Kill a worker, if it is running."""
        watch = self._watches.get(worker)
        if watch is not None and watch.alive:
            self._kill_reasons.setdefault(worker, why)
            watch.send(signal.SIGKILL)

    def skip_grace(self) -> None:
        """Kill workers without a grace period, those included that are still being forked."""
        self._killed.set()

    async def end(self, grace_s: float) -> None:
        """Wait at most this long for all workers to leave; then kill the others.

        A worker that has left, and only ends its process, has its own time.
        """
        waiting = [asyncio.create_task(self._wait_for_all(grace_s)), asyncio.create_task(self._killed.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        self._killed.set()
        for watch in self._watches.values():
            watch.send(signal.SIGKILL)
        self._further.send_all(signal.SIGKILL)
        if self._fork_server is not None:
            # The agent reads its messages until its end, so a worker that it has just forked is killed too.
            self._fork_server.end()

    async def _wait_for_all(self, grace_s: float) -> None:
        limit_s = time.monotonic() + grace_s
        leaving = [
            (worker, asyncio.create_task(watch.wait()))
            for worker, own in list(self._watches.items())
            for watch in (own, *(further for _, further in self._further.list_watched(worker)))
        ]
        try:
            while waiting := [
                task
                for worker, task in leaving
                if not task.done() and time.monotonic() < self._ends.get(worker, limit_s)
            ]:
                await asyncio.wait(waiting, timeout=READ_EVERY_S)
        finally:
            for _, task in leaving:
                task.cancel()
