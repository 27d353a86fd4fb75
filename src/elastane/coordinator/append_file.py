"""A file of JSON lines that only grows, and survives a full disk and a torn last line."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from elastane.observability.line_files import cut_torn_line, read_line_before

OpenFile: TypeAlias = Callable[[Path], int]


def open_to_append(path: Path) -> int:
    """File descriptor to read and write; the file is created if need be.

    Whoever wrote to it before has ended when this returns, and nobody else writes to it while it is open.

    Raises:
        OSError: the file system refuses.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


class AppendFile:
    """Writes whole lines in order; those the disk refuses wait in memory for the next `flush`.

    Args:
        path: of the file. A last line without its end, left by a crash in the middle of a write, is cut off.
        open_file: opens it; returns a file descriptor.
        write: as `os.write`.

    Raises:
        OSError: it cannot even be opened and read.
    """

    def __init__(
        self,
        path: Path,
        open_file: OpenFile = open_to_append,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self._fd = open_file(path)
        self._write = write
        self._waiting: list[bytes] = []
        self._end = cut_torn_line(self._fd)

    @property
    def last_line(self) -> bytes | None:
        """Without its end; None: there is none."""
        return read_line_before(self._fd, self._end)

    @property
    def waiting(self) -> int:
        """Lines not yet on disk."""
        return len(self._waiting)

    def append(self, line: bytes) -> None:
        """Takes one line, without its end; `flush` writes it."""
        self._waiting.append(line + b"\n")

    def flush(self) -> OSError | None:
        """Writes what waits, line by line; returns why it could not, None when all is written."""
        while self._waiting:
            line = self._waiting[0]
            try:
                self._put(line)
            except OSError as error:
                # A full disk may have taken half of the line: only whole ones stay.
                os.ftruncate(self._fd, self._end)
                return error
            self._end += len(line)
            del self._waiting[0]
        return None

    def sync(self) -> OSError | None:
        """Returns once what was written outlives the machine; or why it does not."""
        try:
            os.fsync(self._fd)
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
