"""Runs that are killed whole and resumed: ``elastane run`` in a process of its own, attempt after attempt."""

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Self

from elastane.api.checkpoints import CheckpointSummary
from elastane.api.control import Answer, Ask, AskStatus, RunOver
from elastane.api.errors import ElastaneError
from elastane.api.records import EventLine
from elastane.api.rundir import RunDir
from elastane.client.channel import ask
from elastane.observability.run_files import decode_event_line, read_lines, read_run
from elastane.storage.catalog import Catalog
from elastane.storage.urls import open_storage

from .stage import SCRIPTS, WAIT_S, Ended, Stage, eventually

SHORT_S = 2.0


def processes_of(run_dir: RunDir) -> dict[int, frozenset[str]]:
    """Every process that has a file of the run open, with these files: logs, as a rule."""
    root, found = f"{run_dir.root.resolve()}/", {}
    for entry in Path("/proc").glob("[0-9]*"):
        files = set()
        # Processes come and go, and some are not ours.
        with suppress(OSError):
            for descriptor in (entry / "fd").iterdir():
                with suppress(OSError):
                    files.add(str(descriptor.readlink()))
        if mine := {name.removeprefix(root) for name in files if name.startswith(root)}:
            found[int(entry.name)] = frozenset(mine)
    return found


class Attempts:
    """A run and its attempts.

    Args:
        stage: where runs are staged.
        root: the run's directory will be in it.
    """

    def __init__(self, stage: Stage, root: Path) -> None:
        self._elastane = stage.program("elastane.cli.main")
        self.run_dir = RunDir(root / "run")
        self._logs = root
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
        """``elastane run``; unless it is sized, its own controller decides on the number of workers.

        A module is one among the scripts; only where these are it has its name.
        """
        start = ("--start=1",) if sized else ()
        given = ("--workers=1:8", *start, "--digest-every=5", f"--name={self._logs.name}")
        program = ("-m", module) if module else (str(SCRIPTS / script),)
        folder = SCRIPTS if module else None
        self._start("run", f"--run-dir={self.run_dir.root}", *given, *options, *program, *args, folder=folder)

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
        return self._logs / f"attempt-{number}.txt"

    @property
    def said(self) -> str:
        """All that the last attempt has printed."""
        return self._log(len(self._attempts) - 1).read_text()

    def finish(self) -> int:
        """Wait for the end of the attempt; its exit code."""
        try:
            return self._attempts[-1].wait(WAIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end after {WAIT_S} s:\n{self.said}\n{self.story()}") from None

    def ended(self) -> Ended:
        """After the last attempt's end."""
        code = self.finish()
        return Ended(RunOver(code=code, why=self.said), read_run(self.run_dir))

    # -- what happens to it --------------------------------------------------------------------------------

    def kill_everything(self, order: Random | None = None) -> None:
        """SIGKILL for every process of the run: at once, in any order."""
        if not self._attempts:
            return
        dice = order or Random(0)  # noqa: S311 - an order, not a secret
        # Someone may be forked just now: it is found the next time, if its lifeline has not ended it.
        while pids := [
            *processes_of(self.run_dir),
            *(attempt.pid for attempt in self._attempts if attempt.poll() is None),
        ]:
            dice.shuffle(pids)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for attempt in self._attempts:
                attempt.wait(WAIT_S)

    def send(self, number: signal.Signals) -> None:
        """To ``elastane run``."""
        self._attempts[-1].send_signal(number)

    def open(self, name: str) -> None:
        (self.run_dir.root / name).touch()

    def ask(self, question: Ask) -> Answer:
        answer = ask(self.run_dir, question, WAIT_S / 2)
        assert answer.ok, answer.why
        return answer

    # -- what one waits for --------------------------------------------------------------------------------

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Poll until it is so, as long as the run lives."""

        def holds() -> bool:
            if done():
                return True
            code = self._attempts[-1].poll()
            assert code is None, f"the run ended with {code} before {what}:\n{self.said}\n{self.story()}"
            return False

        try:
            eventually(holds, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said}\n{self.story()}") from None

    def until_step(self, step: int) -> None:
        """This attempt has committed the step and all before."""
        self.until(lambda: self.status is not None and self.status.step >= step, f"step {step}")

    def until_event(self, kind: str, count: int = 1) -> None:
        """In the whole run."""
        self.until(lambda: len(self.events(kind)) >= count, f"{count} times {kind}")

    def until_file(self, name: str) -> None:
        self.until((self.run_dir.root / name).exists, f"the file {name}")

    # -- what is there -------------------------------------------------------------------------------------

    @property
    def status(self) -> Answer | None:
        try:
            return ask(self.run_dir, AskStatus(), SHORT_S)
        except ElastaneError:
            return None

    @property
    def catalog(self) -> Catalog:
        return Catalog(open_storage(str(self.run_dir.checkpoints)))

    def found(self) -> dict[str, CheckpointSummary]:
        """Checkpoints by name, oldest first."""
        return {summary.name: summary for summary in self.catalog.list_summaries()}

    def complete(self) -> list[str]:
        """Names of the finished checkpoints, oldest first."""
        return [name for name, summary in self.found().items() if summary.state == "complete"]

    def events(self, *kinds: str) -> list[EventLine]:
        if not self.run_dir.events.exists():
            return []
        lines = read_lines(self.run_dir.events, decode_event_line, torn_tail=True)
        return [line for line in lines if not kinds or line.kind in kinds]

    def story(self) -> str:
        lines = [f"{event.time:.3f} {event.kind} {event.who}: {event.why}" for event in self.events()]
        logs = [f"--- {path.name}\n{path.read_text()[-4000:]}" for path in self.run_dir.logs.glob("*")]
        return "\n".join([*lines, *logs])
