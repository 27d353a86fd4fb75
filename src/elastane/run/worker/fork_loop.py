"""The loop of a fork server: it imports once what its processes need, then forks them, so they start at once.

Requests and answers are those of `elastane.run.agent.fork_server`. The server only imports and never
computes: threads do not survive a fork, and a forked process would wait for them forever.
"""

import gc
import os
import selectors
import signal
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Literal, NoReturn

import msgspec

from elastane.run.agent.fork_server import ForkAnswer, ForkRequest, ProcessStart, decode_fork_request
from elastane.run.agent.presence import hold_presence
from elastane.run.nouns.resources import THREADS
from elastane.run.nouns.rundir import RunDir

READ_BYTES = 65536


class ForkLoop(ABC):
    """A loop over three descriptors: requests, ended processes, the agent's lifeline.

    Args:
        run_dir: the directory of the run, as its node sees it.
        lifeline: the read end of a pipe to which no process writes; it closes when the agent ends.

    Attributes:
        living: the started processes by process id.
        generation: of the processes of an unmodified script.
        own: the descriptors that a forked process closes.
    """

    def __init__(self, run_dir: RunDir, lifeline: int) -> None:
        self.run_dir, self.lifeline = run_dir, lifeline
        self.living: dict[int, ProcessStart] = {}
        self.generation = 0
        self.own: tuple[int, ...] = ()
        # Every process inherits the lock.
        self._presence = hold_presence(run_dir)
        # Answers have their own copy of standard output, so that printed text cannot mix with them.
        self._answers = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._text = b""

    @abstractmethod
    def handle(self, request: ForkRequest) -> None:
        """Do what the agent requests."""

    @abstractmethod
    def become(self, start: ProcessStart) -> NoReturn:
        """Run a process, in the fork, to its end."""

    @abstractmethod
    def handle_end(self, pid: int) -> None:
        """Handle the end of a child that no request started."""

    def look(self) -> float | None:
        """Look after processes between two requests; return when to look again, in seconds."""
        return None

    @abstractmethod
    def end(self) -> None:
        """End what must not outlive this server."""

    def serve(self, *, left_out: frozenset[str] = frozenset()) -> None:
        """Serve until the agent closes standard input or dies.

        Args:
            left_out: the modules that were not imported.
        """
        # All processes share the imported memory; a garbage collection would touch, and so copy, every page.
        gc.collect()
        gc.freeze()
        children, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self.own = (children, wake, self._answers)
        self.answer(ForkAnswer("ready", modules=tuple(sorted(left_out))))
        requests = sys.stdin.fileno()
        # Not epoll: a forked process would share it with this one.
        selector = selectors.PollSelector()
        for fd in (requests, self.lifeline, children):
            selector.register(fd, selectors.EVENT_READ)
        look_again_s: float | None = None
        while True:
            readable = {key.fd for key, _ in selector.select(look_again_s)}
            if children in readable:
                os.read(children, READ_BYTES)
            self.reap()
            if self.lifeline in readable or (requests in readable and not self._take_requests(requests)):
                self.end()
                return
            look_again_s = self.look()

    def _take_requests(self, fd: int) -> bool:
        data = os.read(fd, READ_BYTES)
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            self.handle(decode_fork_request(line))
        return bool(data)

    def fork(self, start: ProcessStart) -> None:
        """Fork a process, or report that it cannot be started."""
        try:
            pid = os.fork()
        except OSError as error:
            # Running processes must not lose their parent because another one fails to start.
            self.refuse(start, error)
            return
        if pid == 0:
            self.become(start)
        self.living[pid] = start
        self.answer(self._describe("started", start, pid=pid))

    def refuse(self, start: ProcessStart, error: OSError) -> None:
        """Report that a process cannot be started."""
        sys.stderr.write(f"cannot start a process of worker {start.worker}: {error}; {THREADS.do}\n")
        sys.stderr.flush()
        self.answer(self._describe("exited", start, code=THREADS.exit_code))

    def reap(self) -> None:
        """Collect every ended child; one wake-up may stand for several."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if (start := self.living.pop(pid, None)) is None:
                self.handle_end(pid)
            else:
                self.answer(self._describe("exited", start, pid=pid, code=os.waitstatus_to_exitcode(status)))

    def _describe(
        self, event: Literal["started", "exited"], start: ProcessStart, *, pid: int = 0, code: int = 0
    ) -> ForkAnswer:
        return ForkAnswer(
            event, generation=self.generation, worker=start.worker, local=start.local, pid=pid, code=code
        )

    def answer(self, answer: ForkAnswer) -> None:
        """Send an answer to the agent; if it has ended, this server does so too, after its workers."""
        with suppress(BrokenPipeError):
            os.write(self._answers, msgspec.json.encode(answer) + b"\n")
