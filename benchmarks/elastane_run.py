"""A run of Elastane, started with its command line and watched through its files and its coordinator."""

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
    """A figure that an event tells besides."""
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
        checkpoints: how often the state is kept, as ``--checkpoint-every`` has it.
        script: ``train_<script>.py`` is run.
        command: that is ``elastane``.
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
        """Another attempt, from the newest checkpoint, after `kill_everything`."""
        self.main = self._attempt(f"--resume={self.run_dir.root}", f"--start={start}", f"--copies={copies}")

    def kill_everything(self, dice: random.Random, spared: int = 0) -> int:
        """SIGKILL for every process of the run, in any order, until none is left.

        Args:
            dice: for the order.
            spared: a process that is none of the run's, although it has its files open for moments; 0: none.

        Returns:
            How many there were.
        """
        killed: set[int] = set()
        # Somebody may be forked just now: found the next time, if the end of its pipe has not ended it.
        while pids := self._pids(spared):
            dice.shuffle(pids)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(pids)
            self.main.wait()
        return len(killed)

    def _pids(self, spared: int) -> list[int]:
        """Of all that have a file of the run open: each has its log, if nothing else."""
        root = f"{self.run_dir.root.resolve()}/"
        found = {self.main.pid} if self.main.poll() is None else set()
        for process in Path("/proc").glob("[0-9]*"):
            # Processes and their files come and go, and some are not ours.
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
            # Twice Ctrl-C: the agent ends its processes itself, in whatever sessions they are.
            self.main.send_signal(signal.SIGINT)
            self.main.send_signal(signal.SIGINT)
            try:
                self.main.wait(10)
            except subprocess.TimeoutExpired:
                self.main.send_signal(signal.SIGKILL)
        self.processes.__exit__(kind, error, trace)

    def finish(self, timeout_s: float = 600) -> None:
        """To the end of the job.

        Raises:
            RuntimeError: it ended badly, or well without a worker that had come to grief by itself.
        """
        code = self.main.wait(timeout_s)
        if code:
            raise RuntimeError(f"exit code {code} of {self.main.args!r}:\n{self.last_words()}")
        if failures := self.events("worker.failed"):
            raise RuntimeError(f"not even killed: {failures}")

    def last_words(self) -> str:
        """What ``elastane run`` said last, in this attempt."""
        return self.processes.last_words(len(self.processes.started) - 1)

    def finish_in_peace(self, timeout_s: float = 600) -> None:
        """To the end of a job in which nothing was to happen.

        Raises:
            RuntimeError: it ended badly, a worker or the coordinator died, or the ledger has gaps: what was
                measured is not what was meant.
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
        """Pid by worker, of those alive."""
        found = self.processes_as("worker")
        return {process.worker: process.pid for process in found if process.worker is not None}

    def ledger(self) -> tuple[LedgerLine, ...]:
        return read_lines(self.run_dir.ledger, decode_ledger_line, torn_tail=True)

    def steps(self) -> int:
        """Committed so far: lines of the ledger, counted and not read, for it grows long."""
        return self.run_dir.ledger.read_bytes().count(b"\n") if self.run_dir.ledger.exists() else 0

    def events(self, kind: str) -> list[EventLine]:
        lines = read_lines(self.run_dir.events, decode_event_line, torn_tail=True)
        return [line for line in lines if line.kind == kind]

    def ticks(self) -> list[ticks.Tick]:
        return ticks.steps(self.job.out)

    # -- what one waits for ------------------------------------------------------------------------------

    def wait_for_members(self, workers: int) -> float:
        """Until the newest step in the ledger was computed by this many workers; the monotonic time then."""
        return self.wait(
            lambda: bool(self.ledger()) and len(self.ledger()[-1].workers) == workers,
            f"a step of {workers} workers",
        )

    def wait_for_steps(self, steps: int) -> float:
        """Until the ledger holds this many more steps than now; the monotonic time then."""
        goal = self.steps() + steps
        return self.wait(lambda: self.steps() >= goal, f"step {goal}")

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = 180) -> float:
        """Until ``condition`` holds; the monotonic time then, in seconds.

        Raises:
            RuntimeError: the run ended instead.
        """

        def holds() -> bool:
            if self.main.poll() is not None:
                raise RuntimeError(f"the run ended before {what}:\n{self.last_words()}")
            return condition()

        return wait_until(holds, what, timeout_s)
