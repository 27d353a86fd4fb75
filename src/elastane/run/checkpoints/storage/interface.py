"""The interface of a storage of checkpoints: write whole files, read pieces of them, list and delete.

A storage has a root. The names of files are relative to it, with slashes. Every method raises only
`StorageError` or one of its subclasses.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeAlias

from elastane.common.errors import (
    BadInput,
    ElastaneError,
    NoSuchFile,
    StorageError,
    StorageFull,
    UnreadableData,
)
from elastane.run.nouns.checkpoints import WrittenFile

Bytes: TypeAlias = bytes | bytearray | memoryview
FULL = (errno.ENOSPC, errno.EDQUOT)


class StoredFile(Protocol):
    """An open file. Several threads may read at once."""

    @property
    def bytes(self) -> int:
        """The size of the file."""
        ...

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill a writable view with the bytes from ``offset`` on.

        Raises:
            UnreadableData: the file ends too early.
        """
        ...


class Storage(Protocol):
    """A root on some file system."""

    @property
    def url(self) -> str:
        """The root, as error messages name it."""
        ...

    @property
    def readers(self) -> int:
        """The number of parallel reads that is useful."""
        ...

    def write(self, name: str, buffers: Iterable[Bytes]) -> WrittenFile:
        """Write or replace a file; it and its directories are durable when this returns.

        The buffers are written in order without a copy, so they must not change during the write. A failed
        write deletes what it has written; after a crash a part of the file may exist.
        """
        ...

    def read(self, name: str) -> bytes:
        """Return the content of a small file."""
        ...

    def open_file(self, name: str) -> AbstractContextManager[StoredFile]:
        """Open a file to read pieces of it."""
        ...

    def list_files(self, directory: str) -> dict[str, int]:
        """Return the sizes in bytes of the files directly in a directory; empty if it does not exist."""
        ...

    def list_directories(self) -> list[str]:
        """Return the directories directly under the root, sorted; empty if the root does not exist."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        ...

    def delete_directory(self, directory: str) -> None:
        """Delete a directory with its content if it exists."""
        ...


# -- the translation of the errors of file systems into `StorageError`, which happens only here ----------


@contextmanager
def translate_errors(action: str, where: str) -> Iterator[None]:
    """Translate any error of a file system into a `StorageError`.

    Args:
        action: the verb of the operation, such as ``write``.
        where: the file or directory.

    Raises:
        StorageError: the operation failed; may be a subclass.
    """
    try:
        yield
    except ElastaneError:
        raise
    except OSError as error:
        raise _to_storage_error(action, where, error) from error
    # fsspec raises every exception of its client libraries: botocore, aiohttp, google.
    except Exception as error:
        raise StorageError(
            f"cannot {action} {where}: {type(error).__name__}: {error}",
            do="check the URL, the credentials and whether the storage can be reached",
        ) from error


def _to_storage_error(action: str, where: str, error: OSError) -> StorageError:
    why = os.strerror(error.errno) if error.errno else f"{type(error).__name__}: {error}"
    what = f"cannot {action} {where}: {why}"
    if isinstance(error, FileNotFoundError):
        return NoSuchFile(what)
    if error.errno in FULL:
        return StorageFull(what, do="free some space there, or keep fewer checkpoints")
    if error.errno == errno.EIO:
        return UnreadableData(what, means="the disk failed", do="look for the disk in the kernel log: dmesg")
    return StorageError(what, do="check that the storage can be reached and may be written")


def build_missing_file_system_error(url: str, error: Exception) -> BadInput:
    """Return the error for a URL of a file system that is not installed."""
    is_s3 = url.startswith(("s3:", "s3a:"))
    return BadInput(
        f"no file system for {url}: {error}",
        do="pip install 'elastane[s3]'" if is_s3 else "install the fsspec file system of that URL",
    )
