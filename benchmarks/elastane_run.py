"""A run of Elastane, started by the command line and observed through its files and its coordinator."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.nouns.control import Answer, Ask, AskDrain, AskResize, AskStatus, ProcessInfo
from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import decode_event_line, decode_ledger_line, read_lines

import ticks
from job import Job
from processes import Processes, wait_until

NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
ELASTANE = (sys.executable, "-m", "elastane.cli.main")


def read_number(event: EventLine, key: str) -> float:
    """Return a number among the details of an event."""
    value = event.detail[key]
    if not isinstance(value, int | float):
        raise TypeError(f"{key} of {event.kind} is {value!r}")
    return value


class ElastaneRun:
    """``with ElastaneRun(...) as run:`` ends every process of the run with the block.

    Args:
        job: the job to train.
        folder: the folder of the run directory, the logs and the list of known runs.
        start: the number of workers at the start.
        most: the largest number of workers; at least ``start``.
        copies: the copies of the optimizer state, ``all`` or a number.
        transport: the transport of gradients, ``shared`` or ``tcp``.
        checkpoints: the value of ``--checkpoint-every``.
        script: the script is ``train_<script>.py``.
        command: the command to call for ``elastane``.
        options: further options of ``elastane run``.
        environment: further variables of its environment.
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
        options: Sequence[str] = (),
        environment: Mapping[str, str] = NO_VARIABLES,
    ) -> None:
        self.job = job
        self.run_dir = RunDir((folder / "run").absolute())
        self.processes = Processes(folder)
        self._command = command
        self._environment = {**environment, "ELASTANE_HOME": str((folder / "home").absolute())}
        self.main = self._start_attempt(
            *(f"--workers=1:{most}", f"--start={start}", f"--copies={copies}", f"--transport={transport}"),
            *("--threads=1", f"--run-dir={self.run_dir.root}", f"--checkpoint-every={checkpoints}"),
            *options,
            *job.build_script_command(script),
        )

    def _start_attempt(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return self.processes.start([*self._command, "run", *arguments], **self._environment)

    def resume(self, *, start: int, copies: str) -> None:
        """Begin another attempt from the newest checkpoint, after `kill_everything`."""
        self.main = self._start_attempt(
            f"--resume={self.run_dir.root}", f"--start={start}", f"--copies={copies}"
        )

    def kill_everything(self, dice: random.Random, spared: int = 0) -> int:
        """Kill every process of the run, in random order, until none is left.

        Args:
            dice: decides the order.
            spared: a process outside the run that briefly opens the run's files; 0: none.

        Returns:
            The number of killed processes.
        """
        killed: set[int] = set()
        # A process that is being forked now is found the next time, unless the end of its pipe ends it first.
        while pids := self._list_pids(spared):
            dice.shuffle(pids)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(pids)
            self.main.wait()
        return len(killed)

    def _list_pids(self, spared: int) -> list[int]:
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
            RuntimeError: the job failed, or a worker failed by itself.
        """
        code = self.main.wait(timeout_s)
        if code:
            raise RuntimeError(f"exit code {code} of {self.main.args!r}:\n{self.read_last_output()}")
        if failures := self.read_events("worker.failed"):
            raise RuntimeError(f"a worker failed by itself: {failures}")

    def read_last_output(self) -> str:
        """Return the last output of ``elastane run`` in this attempt."""
        return self.processes.read_last_output(len(self.processes.started) - 1)

    def finish_undisturbed(self, timeout_s: float = 600) -> None:
        """Wait for the end of a job in which no process should die.

        Raises:
            RuntimeError: the job failed, a worker or the coordinator died, or the ledger has gaps, so the
                measurement is invalid.
        """
        self.finish(timeout_s)
        for kind in ("worker.died", "worker.hung", "coordinator.died"):
            if deaths := self.read_events(kind):
                raise RuntimeError(f"a process of the undisturbed run died: {deaths}")
        if len(self.read_ledger()) != self.job.steps:
            raise RuntimeError(f"{len(self.read_ledger())} of {self.job.steps} steps are in the ledger")

    # -- requests and files ------------------------------------------------------------------------------

    def ask(self, question: Ask) -> Answer:
        answer = ask_coordinator(self.run_dir, question)
        if not answer.ok:
            raise RuntimeError(f"{question} was refused: {answer.why}")
        return answer

    def resize(self, workers: int) -> None:
        self.ask(AskResize(workers=workers))

    def drain(self, worker: int) -> None:
        self.ask(AskDrain(worker=worker))

    def list_processes(self, role: str) -> list[ProcessInfo]:
        return [process for process in self.ask(AskStatus()).processes if process.role == role]

    def read_worker_pids(self) -> dict[int, int]:
        """Return the pid of each living worker."""
        found = self.list_processes("worker")
        return {process.worker: process.pid for process in found if process.worker is not None}

    def read_all_pids(self) -> dict[int, list[int]]:
        """Return the pids of each living worker, that of its process 0 first, in the order of the workers."""
        found = {p.worker: [p.pid, *p.further] for p in self.list_processes("worker") if p.worker is not None}
        return dict(sorted(found.items()))

    def read_ledger(self) -> tuple[LedgerLine, ...]:
        return read_lines(self.run_dir.ledger, decode_ledger_line, torn_tail=True)

    def count_steps(self) -> int:
        """Return the number of committed steps: the lines of the ledger, counted without decoding."""
        return self.run_dir.ledger.read_bytes().count(b"\n") if self.run_dir.ledger.exists() else 0

    def read_events(self, kind: str) -> list[EventLine]:
        lines = read_lines(self.run_dir.events, decode_event_line, torn_tail=True)
        return [line for line in lines if line.kind == kind]

    def read_ticks(self) -> list[ticks.Tick]:
        return ticks.read_steps(self.job.out)

    # -- waiting -----------------------------------------------------------------------------------------

    def wait_for_members(self, workers: int) -> float:
        """Wait for a step in the ledger by this many workers; return the monotonic time then."""
        return self.wait(
            lambda: bool(self.read_ledger()) and len(self.read_ledger()[-1].workers) == workers,
            f"a step of {workers} workers",
        )

    def wait_for_steps(self, steps: int) -> float:
        """Wait until the ledger has this many more steps than now; return the monotonic time then."""
        goal = self.count_steps() + steps
        return self.wait(lambda: self.count_steps() >= goal, f"step {goal}")

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = 180) -> float:
        """Wait until ``condition`` holds; return the monotonic time then, in seconds.

        Raises:
            RuntimeError: the run ended first.
        """

        def holds() -> bool:
            if self.main.poll() is not None:
                raise RuntimeError(f"the run ended before {what}:\n{self.read_last_output()}")
            return condition()

        return wait_until(holds, what, timeout_s)
