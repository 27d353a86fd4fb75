"""The further processes of workers that have several: they end with process 0, which stands for all."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator

from elastane.run.agent.processes import ProcessWatch
from elastane.run.nouns.membership import WorkerId

EXIT_CODE_S = 0.5
KILLED = -int(signal.SIGKILL)
"""The exit code of a process of which the fork server, which has died itself, has not reported one."""


async def wait_for_code(code: asyncio.Future[int]) -> int:
    """Return the exit code that the fork server reports of a process; one without a report was killed."""
    try:
        async with asyncio.timeout(EXIT_CODE_S):
            return await code
    except TimeoutError:
        return KILLED


class FurtherProcesses:
    """Watches the processes of workers other than their process 0.

    Args:
        end_worker: called when one of them has ended before its worker; it kills process 0.
        end_s: how long process 0 may live on after one of them has ended without an error.

    Attributes:
        causes: the exit code of the process that ended first, by worker.
    """

    def __init__(self, end_worker: Callable[[WorkerId, str], None], end_s: float) -> None:
        self._end_worker, self._end_s = end_worker, end_s
        self._watches: dict[WorkerId, dict[int, ProcessWatch]] = {}
        self._codes: dict[tuple[WorkerId, int], asyncio.Future[int]] = {}
        self._ending: set[WorkerId] = set()
        self.causes: dict[WorkerId, int] = {}

    def list_watched(self, worker: WorkerId) -> Iterator[tuple[int, ProcessWatch]]:
        """Yield the running processes of a worker, with their numbers."""
        yield from sorted(self._watches.get(worker, {}).items())

    def take_code(self, worker: WorkerId, process: int, code: int) -> None:
        """Take the exit code that the fork server reports."""
        future = self._codes.get((worker, process))
        if future is not None and not future.done():
            future.set_result(code)

    def detach_fork_server(self) -> None:
        """Count processes as killed of which a dead fork server can report no exit code any more."""
        for worker, process in list(self._codes):
            self.take_code(worker, process, KILLED)

    def fail_start(self, worker: WorkerId, process: int, code: int) -> None:
        """End a worker of which a process could not be started."""
        self.causes.setdefault(worker, code)
        self._end_worker(worker, f"its process {process} could not be started")

    def watch(self, worker: WorkerId, process: int, pid: int) -> Coroutine[None, None, None]:
        """Return the watch over a process to its end; it ends its worker with it."""
        # Now: its exit code may arrive before the watch begins.
        self._codes[worker, process] = asyncio.get_running_loop().create_future()
        return self._watch(worker, process, pid)

    async def _watch(self, worker: WorkerId, process: int, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            watch = ProcessWatch(pid)
            self._watches.setdefault(worker, {})[process] = watch
            if worker in self._ending:
                watch.send(signal.SIGKILL)
            try:
                await watch.wait()
            finally:
                watch.send(signal.SIGKILL)
                watch.close()
        code = await wait_for_code(self._codes[worker, process])
        self._codes.pop((worker, process), None)
        self._watches.get(worker, {}).pop(process, None)
        if worker in self._ending:
            return
        if code == 0:
            # The worker's script has ended, and process 0 soon does so, too.
            asyncio.get_running_loop().call_later(
                self._end_s, self._end_worker, worker, f"its process {process} has ended"
            )
            return
        self.causes.setdefault(worker, code)
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        self._end_worker(worker, f"its process {process} ended ({how})")

    def note_end(self, worker: WorkerId) -> None:
        """Note that process 0 has ended: what follows in the others is a consequence."""
        self._ending.add(worker)

    async def end(self, worker: WorkerId, killed: asyncio.Event, *, within_s: float) -> None:
        """Wait until all further processes of a worker have ended; kill those that take longer.

        Args:
            killed: set once no process may live on.
            within_s: how long they may take; 0: kill them at once.
        """
        watches = [watch for _, watch in self.list_watched(worker)]
        if within_s and watches:
            waiting = asyncio.gather(*(watch.wait() for watch in watches))
            stopped = asyncio.create_task(killed.wait())
            await asyncio.wait((waiting, stopped), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            stopped.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
        for watch in watches:
            watch.send(signal.SIGKILL)
        for watch in watches:
            await watch.wait()

    def send_all(self, number: signal.Signals) -> None:
        """Signal every process."""
        for watches in self._watches.values():
            for watch in watches.values():
                watch.send(number)
