"""The files of a run to which lines are appended: the ledger, the events, and what both share."""

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec

from elastane.common.atomic_file import open_replacement
from elastane.run.nouns.control import StepReport
from elastane.run.nouns.records import LedgerLine
from elastane.run.observability.line_files import cut_torn_line, read_line_before
from elastane.run.observability.run_files import decode_ledger_line

OpenFile: TypeAlias = Callable[[Path], int]


def open_to_append(path: Path) -> int:
    """Return a file descriptor for reads and writes; create the file if it is missing.

    The file is locked: an earlier writer has ended before this returns, and no other process can write.

    Raises:
        OSError: the file system refuses.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def open_copy_to_append(path: Path) -> int:
    """Return a file descriptor of a copy that has taken the place of the file, locked like `open_to_append`.

    It is for a takeover from another machine. The lock of a dead machine may never be released, and that of a
    silent one protects nothing once its server has given it up. The old writer goes on in a file without a
    name.

    Raises:
        OSError: the file system refuses.
    """
    if not path.exists():
        return open_to_append(path)
    with path.open("rb") as old:
        return _open_copy(path, old)


def _open_copy(path: Path, content: BinaryIO) -> int:
    with open_replacement(path, durable=True, mode=0o644) as copy:
        shutil.copyfileobj(content, copy)
        # The name may belong to the copy of a later coordinator a moment after this one has it.
        fd = os.open(f"/proc/self/fd/{copy.fileno()}", os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


class AppendFile:
    """Writes whole lines in order; lines that the disk refuses wait in memory for the next `flush`.

    Args:
        path: the path of the file. A torn last line, left by a crash during a write, is cut off.
        open_file: opens the file and returns a descriptor.
        write: writes like `os.write`.

    Raises:
        OSError: the file cannot be opened or read.
    """

    def __init__(
        self,
        path: Path,
        open_file: OpenFile = open_to_append,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self._path = path
        self._fd = open_file(path)
        # Held while the file is written or exchanged.
        self._lock = threading.Lock()
        self._write = write
        self._waiting: list[bytes] = []
        self._end = cut_torn_line(self._fd)

    @property
    def last_line(self) -> bytes | None:
        """The last line without its newline; None if the file is empty."""
        return read_line_before(self._fd, self._end)

    @property
    def waiting(self) -> int:
        """The number of lines that are not on disk yet."""
        return len(self._waiting)

    def append(self, line: bytes) -> None:
        """Add one line without a newline; `flush` writes it."""
        self._waiting.append(line + b"\n")

    def flush(self) -> OSError | None:
        """Write all waiting lines; return the error if the disk refuses one, else None."""
        with self._lock:
            while self._waiting:
                line = self._waiting[0]
                try:
                    self._put(line)
                except OSError as error:
                    # A full disk may have accepted half of the line.
                    os.ftruncate(self._fd, self._end)
                    return error
                self._end += len(line)
                del self._waiting[0]
        return None

    def sync(self) -> OSError | None:
        """Wait until the written lines are on the disk; return the error if that fails."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            return error
        return None

    def has_name(self) -> bool:
        """Return whether the path leads to this file.

        A coordinator of an earlier term that was stopped before it moved its copy there may do so at any time
        later.

        Raises:
            OSError: the file system refuses.
        """
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def take_name_back(self) -> OSError | None:
        """Put this file where its path leads; return the error if that fails."""
        try:
            with self._lock, open(f"/proc/self/fd/{self._fd}", "rb") as content:  # noqa: PTH123 - has no name
                named = _open_copy(self._path, content)
                os.close(self._fd)
                self._fd = named
        except OSError as error:
            return error
        return None

    def _put(self, line: bytes) -> None:
        os.lseek(self._fd, self._end, os.SEEK_SET)
        rest = memoryview(line)
        while rest:
            rest = rest[self._write(self._fd, bytes(rest)) :]

    def close(self) -> None:
        os.close(self._fd)


# -- the ledger: one line per committed step, in order and without gaps ----------------------------------


class Ledger:
    """The ``ledger.jsonl`` of a run. Every member reports every step; the first report becomes the line.

    Args:
        path: the path of the file; writing continues after the last whole line in it.
        open_file: opens the file; see `AppendFile`.
        write: writes like `os.write`.
        began_at: the step after which the run began; the first line is that of the next step.
        count_step: called with each line that is written.

    Attributes:
        file: the file itself.
    """

    def __init__(
        self,
        path: Path,
        open_file: OpenFile = open_to_append,
        write: Callable[[int, bytes], int] = os.write,
        *,
        began_at: int = 0,
        count_step: Callable[[LedgerLine], object] = id,
    ) -> None:
        self.file = AppendFile(path, open_file, write)
        self._early: dict[int, LedgerLine] = {}
        self._count_step = count_step
        last = self.file.last_line
        self.last = None if last is None else decode_ledger_line(last)
        self._taken = began_at if self.last is None else self.last.step

    @property
    def step(self) -> int:
        """The highest step that is on disk together with all earlier steps."""
        return self._taken - self.file.waiting

    def take(self, reports: Iterable[StepReport]) -> None:
        """Take reports in any order; repeated ones can only raise ``seconds``, until the line is written."""
        for report in reports:
            line = report.line
            if line.step <= self._taken:
                continue
            known = self._early.get(line.step)
            self._early[line.step] = line if known is None else _merge(known, line)

    def flush(self) -> OSError | None:
        """Write every step that follows the last one; return the error if the disk refuses one, else None."""
        while (line := self._early.pop(self._taken + 1, None)) is not None:
            self.file.append(msgspec.json.encode(line))
            self._taken, self.last = line.step, line
            self._count_step(line)
        return self.file.flush()

    def sync(self, step: int) -> bool:
        """Wait until every line up to this step survives a power failure; return False if one cannot."""
        return self.step >= step and self.file.sync() is None

    def close(self) -> None:
        self.file.close()


def _merge(one: LedgerLine, other: LedgerLine) -> LedgerLine:
    phases = one.seconds.keys() | other.seconds.keys()
    seconds = {phase: max(one.seconds.get(phase, 0.0), other.seconds.get(phase, 0.0)) for phase in phases}
    return msgspec.structs.replace(one, seconds=dict(sorted(seconds.items())))
