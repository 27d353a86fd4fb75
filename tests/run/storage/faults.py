"""Storage that fails at one chosen operation: the calls of a local disk, and a file system of fsspec."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem


class Crash(BaseException):
    """The end of the process: none of its later operations happens."""


class Fault:
    """Counts operations, and makes one of them fail.

    Args:
        kind: ``error`` (EIO), ``full`` (ENOSPC), ``short`` (half of a write, reported or not),
            ``crash``, ``power`` (a crash that loses all data that was not synced).
        at: the number of the failing operation, from 0.
    """

    def __init__(self, kind: str, at: int) -> None:
        self.kind, self.at, self.count, self.fired = kind, at, 0, False
        self.on_power_cut: Callable[[], None] = lambda: None

    def strike(self) -> bool:
        """Count an operation; return whether the caller must shorten it. Other faults are raised here."""
        if self.fired and self.kind in ("crash", "power"):
            raise Crash
        number, self.count = self.count, self.count + 1
        if number != self.at:
            return False
        self.fired = True
        if self.kind == "error":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.kind == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.kind == "crash":
            raise Crash
        if self.kind == "power":
            self.on_power_cut()
            raise Crash
        return True


class FaultyOs:
    """The `os` module of a local storage; it knows which data a power cut would lose."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._paths: dict[int, Path] = {}
        self._directories: set[int] = set()
        self.unsynced: set[Path] = set()
        self.unnamed: set[Path] = set()
        fault.on_power_cut = self._cut_power

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _cut_power(self) -> None:
        for path in self.unsynced:
            if path.is_file():
                os.truncate(path, path.stat().st_size // 2)
        for path in sorted(self.unnamed, reverse=True):
            if path.is_file():
                path.unlink()
            elif path.is_dir():
                shutil.rmtree(path)

    def mkdir(self, path, mode=0o777) -> None:
        self._fault.strike()
        os.mkdir(path, mode)  # noqa: PTH102
        self.unnamed.add(Path(path))

    def open(self, path, flags, mode=0o777) -> int:
        writing = flags & os.O_CREAT
        if writing:
            self._fault.strike()
            if not os.path.exists(path):  # noqa: PTH110
                self.unnamed.add(Path(path))
        fd = os.open(path, flags, mode)
        self._paths[fd] = Path(path)
        return fd

    def writev(self, fd: int, buffers: list[memoryview]) -> int:
        if self._fault.strike():
            buffers = [buffers[0][: len(buffers[0]) // 2 or 1]]
        self.unsynced.add(self._paths[fd])
        return os.writev(fd, buffers)

    def fsync(self, fd: int) -> None:
        self._fault.strike()
        path = self._paths[fd]
        self.unsynced.discard(path)
        if path.is_dir():
            self.unnamed = {entry for entry in self.unnamed if entry.parent != path}
        os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        self._fault.strike()
        os.fdatasync(fd)

    def unlink(self, path) -> None:
        self._fault.strike()
        os.unlink(path)  # noqa: PTH108


class FaultyFile:
    """A file that is being written; its bytes exist at once, so nothing is atomic."""

    def __init__(self, fault: Fault, file: Any) -> None:
        self._fault, self._file = fault, file

    def write(self, data: memoryview) -> int:
        if self._fault.strike():
            # Write half, and report all.
            self._file.write(data[: len(data) // 2])
            return len(data)
        # Half of the data is written already when the next operation fails.
        self._file.write(data[: len(data) // 2])
        self._file.flush()
        return len(data) // 2 + self._file.write(data[len(data) // 2 :])

    def close(self) -> None:
        self._fault.strike()
        self._file.close()


class FaultyFileSystem(AbstractFileSystem):
    """A file system in a local directory, without atomic operations."""

    cachable = False
    protocol = "faulty"

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self._fault, self._fs = fault, LocalFileSystem()

    def makedirs(self, path, exist_ok=False) -> None:
        self._fault.strike()
        self._fs.makedirs(path, exist_ok=exist_ok)

    def open(self, path, mode="rb", **kwargs):
        if "w" not in mode:
            return self._fs.open(path, mode)
        self._fault.strike()
        return FaultyFile(self._fault, self._fs.open(path, mode))

    def info(self, path, **kwargs):
        self._fault.strike()
        return self._fs.info(path)

    def ls(self, path, detail=True, **kwargs):
        self._fault.strike()
        return self._fs.ls(path, detail=detail)

    def cat_file(self, path, start=None, end=None, **kwargs):
        self._fault.strike()
        return self._fs.cat_file(path, start=start, end=end)

    def rm_file(self, path) -> None:
        self._fault.strike()
        self._fs.rm_file(path)
