"""Processes of the harness: each has its own session, and all end with the block that started them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

POLL_S = 0.01


class Processes:
    """Processes that end with their block: ``with Processes(folder) as processes:``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.started:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(self, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        """Start ``command`` with these variables added; its output goes to a numbered log."""
        log = self.folder / f"{len(self.started)}.log"
        process = subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def finish(self, timeout_s: float) -> None:
        """Wait until all have succeeded.

        Raises:
            RuntimeError: one failed; the message has the end of its output.
        """
        deadline = time.monotonic() + timeout_s
        for number, process in enumerate(self.started):
            code = process.wait(max(0.1, deadline - time.monotonic()))
            if code != 0:
                raise RuntimeError(f"exit code {code} of {process.args!r}:\n{self.read_last_output(number)}")

    def read_last_output(self, number: int, length: int = 2000) -> str:
        return (self.folder / f"{number}.log").read_text(errors="replace")[-length:]

    def find_failure(self) -> str:
        """Return the output of the first failed process, or an empty text."""
        for number, process in enumerate(self.started):
            if process.poll() not in {None, 0}:
                return f"{process.args!r} ended with {process.poll()}:\n{self.read_last_output(number)}"
        return ""


def read_cpu_s(pid: int) -> float:
    """Return the processor time of a process so far, in seconds."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def exit_on_sigterm() -> None:
    """Make SIGTERM end the harness as an exception does, with all processes that it has started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def wait_until(
    condition: Callable[[], bool], what: str, timeout_s: float = 120, poll_s: float = POLL_S
) -> float:
    """Wait for ``condition`` and return the monotonic time at which it held, in seconds.

    Raises:
        TimeoutError: it did not hold in time; ``what`` describes the condition.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(poll_s)
    return time.monotonic()
