"""A run of Elastane, started by the command line and observed through its files and its coordinator."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from elastane.api.control import Answer, Ask, AskDrain, AskResize, AskStatus, ProcessInfo
from elastane.api.records import EventLine, LedgerLine
from elastane.api.rundir import RunDir
from elastane.client.channel import ask
from elastane.observability.run_files import decode_event_line, decode_ledger_line, read_lines

import ticks
from job import Job
from processes import Processes, wait_until

ELASTANE = (sys.executable, "-m", "elastane.cli.main")


def number(event: EventLine, key: str) -> float:
    """Return a number among the details of an event."""
    value = event.detail[key]
    if not isinstance(value, int | float):
        raise TypeError(f"{key} of {event.kind} is {value!r}")
    return value


class ElastaneRun:
    """``with ElastaneRun(...) as run:`` ends every process of the run with the block.

    Args:
        job: what to train.
        folder: for the run directory, the logs and the list of known runs.
        start: workers to begin with.
        most: workers at most; at least ``start``.
        copies: copies of the optimizer state, ``all`` or a number.
        transport: how gradients travel, ``shared`` or ``tcp``.
        checkpoints: the value of ``--checkpoint-every``.
        script: ``train_<script>.py`` is run.
        command: to call for ``elastane``.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        *,
        start: int,
        most: int,
        copies: str = "all",
        transport: str = "shared",
        checkpoints: str = "never",
        script: str = "elastane",
        command: Sequence[str] = ELASTANE,
    ) -> None:
        self.job = job
        self.run_dir = RunDir((folder / "run").absolute())
        self.processes = Processes(folder)
        self._command = command
        self._home = str((folder / "home").absolute())
        self.main = self._attempt(
            *(f"--workers=1:{most}", f"--start={start}", f"--copies={copies}", f"--transport={transport}"),
            *("--threads=1", f"--run-dir={self.run_dir.root}", f"--checkpoint-every={checkpoints}"),
            *job.script(script),
        )

    def _attempt(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return self.processes.start([*self._command, "run", *arguments], ELASTANE_HOME=self._home)

    def resume(self, *, start: int, copies: str) -> None:
        """Begin another attempt from the newest checkpoint, after `kill_everything`."""
        self.main = self._attempt(f"--resume={self.run_dir.root}", f"--start={start}", f"--copies={copies}")

    def kill_everything(self, dice: random.Random, spared: int = 0) -> int:
        """Kill every process of the run, in random order, until none is left.

        Args:
            dice: for the order.
            spared: a process outside the run that has the run's files open for moments; 0: none.

        Returns:
            The number of killed processes.
        """
        killed: set[int] = set()
        # A process that is being forked now is found the next time, unless the end of its pipe ends it first.
        while pids := self._pids(spared):
            dice.shuffle(pids)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(pids)
            self.main.wait()
        return len(killed)

    def _pids(self, spared: int) -> list[int]:
        """Return the pids of all processes that have a file of the run open; each has at least its log."""
        root = f"{self.run_dir.root.resolve()}/"
        found = {self.main.pid} if self.main.poll() is None else set()
        for process in Path("/proc").glob("[0-9]*"):
            # Processes and their files come and go, and some belong to other users.
            with suppress(OSError):
                for file in (process / "fd").iterdir():
                    with suppress(OSError):
                        if str(file.readlink()).startswith(root):
                            found.add(int(process.name))
        return list(found - {spared})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.main.poll() is None:
            # Twice Ctrl-C: the agent itself ends its processes, in all sessions.
            self.main.send_signal(signal.SIGINT)
            self.main.send_signal(signal.SIGINT)
            try:
                self.main.wait(10)
            except subprocess.TimeoutExpired:
                self.main.send_signal(signal.SIGKILL)
        self.processes.__exit__(kind, error, trace)

    def finish(self, timeout_s: float = 600) -> None:
        """Wait for the end of the job.

        Raises:
            RuntimeError: it failed, or it succeeded after a worker failed by itself.
        """
        code = self.main.wait(timeout_s)
        if code:
            raise RuntimeError(f"exit code {code} of {self.main.args!r}:\n{self.last_words()}")
        if failures := self.events("worker.failed"):
            raise RuntimeError(f"not even killed: {failures}")

    def last_words(self) -> str:
        """Return the last output of ``elastane run`` in this attempt."""
        return self.processes.last_words(len(self.processes.started) - 1)

    def finish_in_peace(self, timeout_s: float = 600) -> None:
        """Wait for the end of a job in which no process should die.

        Raises:
            RuntimeError: it failed, a worker or the coordinator died, or the ledger has gaps, so the
                measurement is invalid.
        """
        self.finish(timeout_s)
        for kind in ("worker.died", "worker.hung", "coordinator.died"):
            if deaths := self.events(kind):
                raise RuntimeError(f"not in peace: {deaths}")
        if len(self.ledger()) != self.job.steps:
            raise RuntimeError(f"{len(self.ledger())} of {self.job.steps} steps are in the ledger")

    # -- what it says ------------------------------------------------------------------------------------

    def ask(self, question: Ask) -> Answer:
        answer = ask(self.run_dir, question)
        if not answer.ok:
            raise RuntimeError(f"{question} was refused: {answer.why}")
        return answer

    def resize(self, workers: int) -> None:
        self.ask(AskResize(workers=workers))

    def drain(self, worker: int) -> None:
        self.ask(AskDrain(worker=worker))

    def processes_as(self, role: str) -> list[ProcessInfo]:
        return [process for process in self.ask(AskStatus()).processes if process.role == role]

    def worker_pids(self) -> dict[int, int]:
        """Return the pid of each living worker."""
        found = self.processes_as("worker")
        return {process.worker: process.pid for process in found if process.worker is not None}

    def ledger(self) -> tuple[LedgerLine, ...]:
        return read_lines(self.run_dir.ledger, decode_ledger_line, torn_tail=True)

    def steps(self) -> int:
        """Return the number of committed steps: the lines of the ledger, counted without decoding."""
        return self.run_dir.ledger.read_bytes().count(b"\n") if self.run_dir.ledger.exists() else 0

    def events(self, kind: str) -> list[EventLine]:
        lines = read_lines(self.run_dir.events, decode_event_line, torn_tail=True)
        return [line for line in lines if line.kind == kind]

    def ticks(self) -> list[ticks.Tick]:
        return ticks.steps(self.job.out)

    # -- what one waits for ------------------------------------------------------------------------------

    def wait_for_members(self, workers: int) -> float:
        """Wait for a step in the ledger by this many workers; return the monotonic time then."""
        return self.wait(
            lambda: bool(self.ledger()) and len(self.ledger()[-1].workers) == workers,
            f"a step of {workers} workers",
        )

    def wait_for_steps(self, steps: int) -> float:
        """Wait until the ledger has this many more steps than now; return the monotonic time then."""
        goal = self.steps() + steps
        return self.wait(lambda: self.steps() >= goal, f"step {goal}")

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = 180) -> float:
        """Wait until ``condition`` holds; return the monotonic time then, in seconds.

        Raises:
            RuntimeError: the run ended first.
        """

        def holds() -> bool:
            if self.main.poll() is not None:
                raise RuntimeError(f"the run ended before {what}:\n{self.last_words()}")
            return condition()

        return wait_until(holds, what, timeout_s)
