"""Checkpoints on whatever fsspec reaches: S3 and its relatives, Google, Azure, SFTP, HDFS."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fsspec import AbstractFileSystem, url_to_fs
from fsspec.spec import AbstractBufferedFile

from elastane.api.checkpoints import Written
from elastane.api.errors import StorageError, Unreadable
from elastane.storage.hashing import hashed
from elastane.storage.place import Bytes, no_file_system
from elastane.storage.refusal import refusals

UPLOAD_BYTES = 32 << 20
"""Of one piece of a multipart upload: at most 10000 of them make a file, so 320 GB."""


def remote_place(url: str) -> "RemotePlace":
    """The place at a URL.

    Raises:
        BadInput: no file system for this URL is installed.
    """
    try:
        # Listings must show what other workers have just written, so nothing is cached.
        filesystem, root = url_to_fs(url, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise no_file_system(url, error) from error
    return RemotePlace(filesystem, root, url)


class RemotePlace:
    """A root on a file system of fsspec.

    Args:
        filesystem: its synchronous interface is used, from several threads.
        root: path on it.
        url: the root, for people.
    """

    readers = 4

    def __init__(self, filesystem: AbstractFileSystem, root: str, url: str) -> None:
        self._fs, self._root, self.url = filesystem, root.rstrip("/"), url.rstrip("/")

    def write(self, name: str, buffers: Iterable[Bytes]) -> Written:
        path = f"{self._root}/{name}"
        with refusals("write", f"{self.url}/{name}"):
            # Where directories are real; object stores have none.
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            file = self._fs.open(path, "wb", block_size=UPLOAD_BYTES)
            try:
                written = hashed(buffers, lambda batch: _write_all(file, batch))
            except BaseException:
                _abandon(file)
                raise
            file.close()
            self._fs.invalidate_cache(path)
            size = self._fs.info(path)["size"]
            if size != written.bytes:
                raise StorageError(f"{self.url}/{name} has {size} bytes after {written.bytes} were written")
        return written

    def read(self, name: str) -> bytes:
        with refusals("read", f"{self.url}/{name}"):
            return bytes(self._fs.cat_file(f"{self._root}/{name}"))

    @contextmanager
    def reading(self, name: str) -> Iterator["RemoteReading"]:
        with refusals("read", f"{self.url}/{name}"):
            self._fs.invalidate_cache(f"{self._root}/{name}")
            size = int(self._fs.info(f"{self._root}/{name}")["size"])
        yield RemoteReading(self._fs, f"{self._root}/{name}", f"{self.url}/{name}", size)

    def files(self, directory: str) -> dict[str, int]:
        return {
            name: int(entry["size"] or 0)
            for name, entry in self._entries(f"/{directory}").items()
            if entry["type"] == "file"
        }

    def directories(self) -> list[str]:
        return sorted(name for name, entry in self._entries("").items() if entry["type"] == "directory")

    def _entries(self, below: str) -> dict[str, dict[str, Any]]:
        with refusals("list", self.url + below):
            self._fs.invalidate_cache(self._root + below)
            try:
                listed = self._fs.ls(self._root + below, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return {}
        return {entry["name"].rstrip("/").rpartition("/")[2]: entry for entry in listed}

    def delete(self, name: str) -> None:
        with refusals("delete", f"{self.url}/{name}"):
            try:
                self._fs.rm_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return

    def delete_directory(self, directory: str) -> None:
        with refusals("delete", f"{self.url}/{directory}"):
            self._fs.invalidate_cache(f"{self._root}/{directory}")
            try:
                self._fs.rm(f"{self._root}/{directory}", recursive=True)
            except FileNotFoundError:
                return


class RemoteReading:
    """A file read by ranges, each a request of its own."""

    def __init__(self, filesystem: AbstractFileSystem, path: str, url: str, size_bytes: int) -> None:
        self._fs, self._path, self._url, self.bytes = filesystem, path, url, size_bytes

    def into(self, offset: int, view: memoryview) -> None:
        if not view:
            return
        with refusals("read", self._url):
            found = self._fs.cat_file(self._path, start=offset, end=offset + len(view))
            if len(found) != len(view):
                raise Unreadable(
                    f"cannot read {self._url}: {len(found)} of {len(view)} bytes at byte {offset}"
                )
            view[:] = found


def _write_all(file: AbstractBufferedFile, batch: list[memoryview]) -> None:
    for piece in batch:
        taken = file.write(piece)
        if taken is not None and taken != len(piece):
            raise StorageError(f"a write took {taken} of {len(piece)} bytes")


def _abandon(file: AbstractBufferedFile) -> None:
    """Give up an upload: closing the file instead would complete it with what it has."""
    file.closed = True
    if hasattr(file, "discard"):
        with refusals("abandon", "the upload"):
            file.discard()
