"""Checkpoints on file systems of fsspec: S3 and compatible stores, Google, Azure, SFTP, HDFS."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fsspec import AbstractFileSystem, url_to_fs
from fsspec.spec import AbstractBufferedFile

from elastane.common.errors import StorageError, UnreadableData
from elastane.run.checkpoints.storage.hashing import hash_while_writing
from elastane.run.checkpoints.storage.interface import (
    Bytes,
    build_missing_file_system_error,
    translate_errors,
)
from elastane.run.nouns.checkpoints import WrittenFile

UPLOAD_BYTES = 32 << 20
"""The size of one piece of a multipart upload: a file has at most 10000 pieces, so 320 GB."""


def open_remote_storage(url: str) -> "RemoteStorage":
    """Return the storage at a URL.

    Raises:
        BadInput: the file system of this URL is not installed.
    """
    try:
        # No caches: listings must show files that other workers have just written.
        filesystem, root = url_to_fs(url, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise build_missing_file_system_error(url, error) from error
    return RemoteStorage(filesystem, root, url)


class RemoteStorage:
    """A root on a file system of fsspec.

    Args:
        filesystem: the file system, used through its synchronous interface from several threads.
        url: the root, as error messages name it.
    """

    readers = 4

    def __init__(self, filesystem: AbstractFileSystem, root: str, url: str) -> None:
        self._fs, self._root, self.url = filesystem, root.rstrip("/"), url.rstrip("/")

    def write(self, name: str, buffers: Iterable[Bytes]) -> WrittenFile:
        path = f"{self._root}/{name}"
        with translate_errors("write", f"{self.url}/{name}"):
            file = self._open(path)
            try:
                written = hash_while_writing(buffers, lambda batch: _write_all(file, batch), file.close)
            except BaseException:
                _abandon(file)
                raise
            self._fs.invalidate_cache(path)
            size = self._fs.info(path)["size"]
            if size != written.bytes:
                raise StorageError(f"{self.url}/{name} has {size} bytes after {written.bytes} were written")
        return written

    def _open(self, path: str) -> AbstractBufferedFile:
        try:
            return self._fs.open(path, "wb", block_size=UPLOAD_BYTES)
        except FileNotFoundError:
            # Only after a failure: object stores have no directories, and s3fs would create a mistyped
            # bucket.
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            return self._fs.open(path, "wb", block_size=UPLOAD_BYTES)

    def read(self, name: str) -> bytes:
        with translate_errors("read", f"{self.url}/{name}"):
            return bytes(self._fs.cat_file(f"{self._root}/{name}"))

    @contextmanager
    def open_file(self, name: str) -> Iterator["RemoteFile"]:
        with translate_errors("read", f"{self.url}/{name}"):
            self._fs.invalidate_cache(f"{self._root}/{name}")
            size = int(self._fs.info(f"{self._root}/{name}")["size"])
        yield RemoteFile(self._fs, f"{self._root}/{name}", f"{self.url}/{name}", size)

    def list_files(self, directory: str) -> dict[str, int]:
        return {
            name: int(entry["size"] or 0)
            for name, entry in self._list_entries(f"/{directory}").items()
            if entry["type"] == "file"
        }

    def list_directories(self) -> list[str]:
        return sorted(name for name, entry in self._list_entries("").items() if entry["type"] == "directory")

    def _list_entries(self, below: str) -> dict[str, dict[str, Any]]:
        with translate_errors("list", self.url + below):
            self._fs.invalidate_cache(self._root + below)
            try:
                listed = self._fs.ls(self._root + below, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return {}
        return {entry["name"].rstrip("/").rpartition("/")[2]: entry for entry in listed}

    def delete(self, name: str) -> None:
        with translate_errors("delete", f"{self.url}/{name}"):
            try:
                self._fs.rm_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return

    def delete_directory(self, directory: str) -> None:
        with translate_errors("delete", f"{self.url}/{directory}"):
            self._fs.invalidate_cache(f"{self._root}/{directory}")
            try:
                self._fs.rm(f"{self._root}/{directory}", recursive=True)
            except FileNotFoundError:
                return


class RemoteFile:
    """A file that is read in ranges, with one request for each."""

    def __init__(self, filesystem: AbstractFileSystem, path: str, url: str, size_bytes: int) -> None:
        self._fs, self._path, self._url, self.bytes = filesystem, path, url, size_bytes

    def read_into(self, offset: int, view: memoryview) -> None:
        if not view:
            return
        with translate_errors("read", self._url):
            data = self._fs.cat_file(self._path, start=offset, end=offset + len(view))
            if len(data) != len(view):
                raise UnreadableData(
                    f"cannot read {self._url}: {len(data)} of {len(view)} bytes at byte {offset}"
                )
            view[:] = data


def _write_all(file: AbstractBufferedFile, batch: list[memoryview]) -> None:
    for piece in batch:
        written = file.write(piece)
        if written is not None and written != len(piece):
            raise StorageError(f"a write accepted {written} of {len(piece)} bytes")


def _abandon(file: AbstractBufferedFile) -> None:
    """End an upload without its file; closing the file would complete it with the bytes written so far."""
    # A checkpoint without a marker is ignored, so a second failure here is harmless.
    with suppress(StorageError), translate_errors("abandon", "an upload"):
        if isinstance(file, AbstractBufferedFile):
            file.closed = True
            file.discard()
        else:
            file.close()
