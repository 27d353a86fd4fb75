"""The last commit, which the processes of one size hand over to those of the next.

Horovod keeps commits in the memory of the survivors. Here a change of size restarts all processes, so the
newest commit is written when the restart is announced. Every process may write it, whichever others
are dead; the first one does.
"""

import fcntl
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from elastane.common.atomic_file import open_replacement, remove_partials

NAME = re.compile(r"commit-(\d{1,18})\.pt")
NEXT_COMMIT_S = 0.5
"""How long the main thread may take to its next commit before the previous one is written."""


class Commit(NamedTuple):
    """A state to which training can return.

    Args:
        number: of the commit; later ones are larger, over all restarts.
        content: of plain values and tensors, copied from the state.
    """

    number: int
    content: dict[str, Any]


class Handover:
    """The directory through which commits pass; None: the process has no successor."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._latest: Commit | None = None
        self._stop_announced = threading.Event()
        # The main thread sets this at once; the thread that sets the event may have to wait for it.
        self._signalled = False
        self._written = threading.Event()

    @property
    def stop_announced(self) -> bool:
        """Whether this process has to end, because the number of processes changes."""
        return self._signalled or self._stop_announced.is_set()

    def wait_for_stop(self, most_s: float) -> bool:
        """Wait until the stop is announced; return whether it was."""
        return self._stop_announced.wait(most_s)

    def set_latest(self, commit: Commit) -> None:
        """Remember the newest commit."""
        self._latest = commit

    def write_latest(self) -> None:
        """Write the newest commit, unless another process has written it.

        Raises:
            OSError: the directory cannot be written.
        """
        commit, directory = self._latest, self._directory
        self._written.set()
        if commit is None or directory is None:
            return
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "lock").open("w") as lock:
            # A writer that dies releases the lock, and the next process writes.
            fcntl.flock(lock, fcntl.LOCK_EX)
            stored = _list_stored(directory)
            if stored and stored[0][0] >= commit.number:
                return
            path = directory / f"commit-{commit.number}.pt"
            remove_partials(path)
            # Not durable: after a power cut the script continues from its own snapshot.
            with open_replacement(path, durable=False, mode=0o600) as file:
                torch.save(commit.content, file)
            for _, older in stored:
                older.unlink(missing_ok=True)

    def read_newest(self) -> Commit | None:
        """Return the newest readable commit of earlier processes; None: there is none."""
        if self._directory is None:
            return None
        for number, path in _list_stored(self._directory):
            try:
                # Only tensors and plain values: nothing in the file is executed.
                return Commit(number, torch.load(path, map_location="cpu", weights_only=True))
            # The file may be torn or foreign in many ways, and an older one may serve.
            except Exception as error:  # noqa: BLE001
                sys.stderr.write(f"{path} cannot be read and is left out: {error}\n")
        return None

    def clear(self) -> None:
        """Remove all commits, because the training function has ended."""
        self._latest = None
        if self._directory is not None:
            for _, path in _list_stored(self._directory):
                path.unlink(missing_ok=True)

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Write the newest commit as soon as SIGTERM announces a stop, until the context ends.

        A thread writes it, because the main thread may be waiting for a process that no longer exists.
        """
        if self._directory is None:
            yield
            return
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        before = signal.signal(signal.SIGTERM, self._note_signal)
        wakeup_before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        thread = threading.Thread(target=self._serve, args=(woken,), name="elastane-handover", daemon=True)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup_before)
            signal.signal(signal.SIGTERM, before)
            os.close(wake)
            thread.join()

    def _note_signal(self, _number: int, _frame: object) -> None:
        # Not the event: the main thread may hold its lock.
        self._signalled = True

    def _serve(self, woken: int) -> None:
        with os.fdopen(woken, "rb", buffering=0) as signals:
            while numbers := signals.read(64):
                if signal.SIGTERM in numbers:
                    self._stop_announced.set()
                    if self._written.wait(NEXT_COMMIT_S):
                        continue
                    try:
                        self.write_latest()
                    except OSError as error:
                        sys.stderr.write(f"the last commit could not be written: {error}\n")


def _list_stored(directory: Path) -> list[tuple[int, Path]]:
    """Return number and path of the written commits, newest first."""
    if not directory.is_dir():
        return []
    found = ((NAME.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)
