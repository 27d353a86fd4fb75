"""Checkpoints on a disk of this machine or a shared file system, by plain system calls."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from elastane.api.checkpoints import Written
from elastane.api.errors import StorageError, Unreadable
from elastane.storage.hashing import hashed
from elastane.storage.place import Bytes
from elastane.storage.refusal import refusals


class LocalPlace:
    """A directory.

    Args:
        root: need not exist yet.
    """

    readers = 2

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).absolute()
        self.url = str(self._root)

    def write(self, name: str, buffers: Iterable[Bytes]) -> Written:
        path = self._root / name
        with refusals("write", str(path)):
            self._make(path.parent)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                written = hashed(buffers, lambda batch: _write_all(fd, batch))
                os.fsync(fd)
            finally:
                os.close(fd)
            _sync_directory(path.parent)
        return written

    def _make(self, directory: Path) -> None:
        """Like ``mkdir -p``, and each new directory's name is on the disk too."""
        if directory.is_dir():
            return
        self._make(directory.parent)
        directory.mkdir(exist_ok=True)
        _sync_directory(directory.parent)

    def read(self, name: str) -> bytes:
        with refusals("read", str(self._root / name)):
            return (self._root / name).read_bytes()

    @contextmanager
    def reading(self, name: str) -> Iterator["LocalReading"]:
        path = self._root / name
        with refusals("read", str(path)):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield LocalReading(path, fd)
        finally:
            os.close(fd)

    def files(self, directory: str) -> dict[str, int]:
        with refusals("list", str(self._root / directory)):
            try:
                with os.scandir(self._root / directory) as entries:
                    return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
            except (FileNotFoundError, NotADirectoryError):
                return {}

    def directories(self) -> list[str]:
        with refusals("list", self.url):
            try:
                with os.scandir(self._root) as entries:
                    return sorted(entry.name for entry in entries if entry.is_dir())
            except (FileNotFoundError, NotADirectoryError):
                return []

    def delete(self, name: str) -> None:
        with refusals("delete", str(self._root / name)):
            (self._root / name).unlink(missing_ok=True)
            if (self._root / name).parent.is_dir():
                _sync_directory((self._root / name).parent)

    def delete_directory(self, directory: str) -> None:
        with refusals("delete", str(self._root / directory)):
            try:
                shutil.rmtree(self._root / directory)
            except FileNotFoundError:
                return


class LocalReading:
    """An open file."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd = path, fd

    @property
    def bytes(self) -> int:
        with refusals("read", str(self._path)):
            return os.fstat(self._fd).st_size

    def into(self, offset: int, view: memoryview) -> None:
        with refusals("read", str(self._path)):
            while view:
                count = os.preadv(self._fd, [view], offset)
                if not count:
                    raise Unreadable(
                        f"cannot read {self._path}: it ends at byte {offset}, {len(view)} bytes too early"
                    )
                view, offset = view[count:], offset + count


def _write_all(fd: int, batch: list[memoryview]) -> None:
    """A write may take fewer bytes than it is given: before a disk is full, or past 2 GiB."""
    while batch:
        count = os.writev(fd, batch)
        if not count:
            raise StorageError("a write took no byte and gave no reason")
        while batch and count >= len(batch[0]):
            count -= len(batch[0])
            batch = batch[1:]
        if batch:
            batch = [batch[0][count:], *batch[1:]]


def _sync_directory(directory: Path) -> None:
    """A file whose name is not on the disk is lost with the power, however well its bytes are."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
