"""Runs of several attempts, each an ``elastane run`` in its own process that a test kills and resumes."""

import itertools
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Self

from elastane.common.errors import ElastaneError
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.urls import open_storage
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.nouns.checkpoints import CheckpointSummary
from elastane.run.nouns.control import Answer, Ask, AskStatus, RunOver
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import decode_event_line, read_lines, read_run
from tests.waiting import WAIT_S, wait_until

from .stage import SCRIPTS, EndedRun, Stage

SHORT_S = 2.0


def find_run_processes(run_dir: RunDir) -> dict[int, frozenset[str]]:
    """Return each process that has files of the run open, and these files; most are logs."""
    root, found = f"{run_dir.root.resolve()}/", {}
    for entry in Path("/proc").glob("[0-9]*"):
        files = set()
        # A process may end meanwhile, and some belong to other users.
        with suppress(OSError):
            for descriptor in (entry / "fd").iterdir():
                with suppress(OSError):
                    files.add(str(descriptor.readlink()))
        if opened := {name.removeprefix(root) for name in files if name.startswith(root)}:
            found[int(entry.name)] = frozenset(opened)
    return found


class Attempts:
    """A run and its attempts.

    Args:
        stage: gives the command of ``elastane``.
        root: the folder of the run directory and of the attempts' output.
    """

    def __init__(self, stage: Stage, root: Path) -> None:
        self._elastane = (*stage.warm_client, "elastane")
        self.run_dir = RunDir(root / "run")
        self._outputs = root
        self._attempts: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_everything()

    # -- attempts --------------------------------------------------------------------------------------------

    def begin(
        self,
        *options: str,
        script: str = "training.py",
        module: str = "",
        args: tuple[str, ...] = (),
        sized: bool = True,
    ) -> None:
        """Start ``elastane run``.

        Args:
            options: of ``elastane run``.
            script: a file of ``scripts/``.
            module: a module of ``scripts/`` to train instead; the attempt starts in that folder.
            args: arguments of the script.
            sized: begin with one worker; otherwise the run's own controller chooses the number of workers.
        """
        start = ("--start=1",) if sized else ()
        settings = ("--workers=1:8", *start, "--digest-every=5", f"--name={self._outputs.name}")
        program = ("-m", module) if module else (str(SCRIPTS / script),)
        folder = SCRIPTS if module else None
        self._start(
            "run", f"--run-dir={self.run_dir.root}", *settings, *options, *program, *args, folder=folder
        )

    def resume(self, *options: str) -> None:
        self._start("run", f"--resume={self.run_dir.root}", *options)

    def _start(self, *command: str, folder: Path | None = None) -> None:
        with self._log(len(self._attempts)).open("wb") as log:
            attempt = subprocess.Popen(
                [*self._elastane, *command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._attempts.append(attempt)

    def _log(self, number: int) -> Path:
        return self._outputs / f"attempt-{number}.txt"

    @property
    def output(self) -> str:
        """Everything that the last attempt has printed."""
        return self._log(len(self._attempts) - 1).read_text()

    def wait_for_exit(self) -> int:
        """Wait for the end of the last attempt and return its exit code."""
        try:
            return self._attempts[-1].wait(WAIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end after {WAIT_S} s:\n{self.output}\n{self.describe()}") from None

    def wait_for_end(self) -> EndedRun:
        """Wait for the end of the last attempt and return the run."""
        code = self.wait_for_exit()
        return EndedRun(RunOver(code=code, why=self.output), read_run(self.run_dir))

    # -- disturbances --------------------------------------------------------------------------------------

    def kill_everything(self, order: Random | None = None) -> None:
        """Kill all processes of the run at one moment, as a power failure does.

        Each is stopped first, in an order that is drawn, so that none of them sees another one die.
        """
        if not self._attempts:
            return
        dice = order or Random(0)
        # A process that is forked just now is found the next time, if its lifeline has not ended it.
        while pids := [
            *find_run_processes(self.run_dir),
            *(attempt.pid for attempt in self._attempts if attempt.poll() is None),
        ]:
            dice.shuffle(pids)
            for number, pid in itertools.product((signal.SIGSTOP, signal.SIGKILL), pids):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            for attempt in self._attempts:
                attempt.wait(WAIT_S)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to ``elastane run``."""
        self._attempts[-1].send_signal(number)

    def touch(self, name: str) -> None:
        """Create a file in the run directory that workers wait for."""
        (self.run_dir.root / name).touch()

    def ask(self, question: Ask) -> Answer:
        answer = ask_coordinator(self.run_dir, question, WAIT_S / 2)
        assert answer.ok, answer.why
        return answer

    # -- conditions ----------------------------------------------------------------------------------------

    def wait_until(self, done: Callable[[], bool], what: str) -> None:
        """Poll a condition until it holds; fail when the attempt ends first."""

        def holds() -> bool:
            if done():
                return True
            code = self._attempts[-1].poll()
            assert code is None, f"the run ended with {code} before {what}:\n{self.output}\n{self.describe()}"
            return False

        try:
            wait_until(holds, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}\n{self.describe()}") from None

    def wait_for_step(self, step: int) -> None:
        """Wait until the last attempt has committed this step and all steps before it."""
        self.wait_until(
            lambda: self.status is not None and self.status.step >= step, f"step {step} is committed"
        )

    def wait_for_event(self, kind: str, count: int = 1) -> None:
        """Wait until all attempts together have ``count`` events of this kind."""
        self.wait_until(lambda: len(self.find_events(kind)) >= count, f"there are {count} events {kind}")

    def wait_for_file(self, name: str) -> None:
        self.wait_until((self.run_dir.root / name).exists, f"the file {name} exists")

    # -- observations --------------------------------------------------------------------------------------

    @property
    def status(self) -> Answer | None:
        try:
            return ask_coordinator(self.run_dir, AskStatus(), SHORT_S)
        except ElastaneError:
            return None

    @property
    def catalog(self) -> Catalog:
        return Catalog(open_storage(str(self.run_dir.checkpoints)))

    def find_checkpoints(self) -> dict[str, CheckpointSummary]:
        """Return all checkpoints by name, the oldest first."""
        return {summary.name: summary for summary in self.catalog.list_summaries()}

    def list_complete_checkpoints(self) -> list[str]:
        """Return the names of the complete checkpoints, the oldest first."""
        return [name for name, summary in self.find_checkpoints().items() if summary.state == "complete"]

    def find_events(self, *kinds: str) -> list[EventLine]:
        if not self.run_dir.events.exists():
            return []
        lines = read_lines(self.run_dir.events, decode_event_line, torn_tail=True)
        return [line for line in lines if not kinds or line.kind in kinds]

    def describe(self) -> str:
        """Return the events and the ends of the logs, for the message of a failed test."""
        lines = [f"{event.time:.3f} {event.kind} {event.who}: {event.why}" for event in self.find_events()]
        logs = [f"--- {path.name}\n{path.read_text()[-4000:]}" for path in self.run_dir.logs.glob("*")]
        return "\n".join([*lines, *logs])


def play_from_checkpoint(
    stage: Stage, folder: Path, script: str, *args: str, step: int, options: tuple[str, ...] = ()
) -> EndedRun:
    """Train a run, then another one with two workers from the first one's checkpoint after ``step``.

    Returns:
        The second run, at its end.
    """
    # Runs are named after their folders, and a name is taken by one run.
    one, other = (folder / f"{folder.name}-{name}" for name in ("first", "second"))
    one.mkdir()
    other.mkdir()
    with Attempts(stage, one) as first, Attempts(stage, other) as second:
        first.begin(f"--checkpoint-every={step} steps", "--keep-last=9", *options, script=script, args=args)
        ended = first.wait_for_end()
        assert ended.outcome.code == 0, ended.describe()
        begins = f"--from={first.run_dir.root}@{step}"
        second.begin(begins, "--start=2", *options, script=script, args=args)
        return second.wait_for_end()
