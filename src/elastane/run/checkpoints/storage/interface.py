"""The interface of a storage of checkpoints: write whole files, read pieces of them, list and delete.

A storage has a root. The names of files are relative to it, with slashes. Every method raises only
`StorageError` or one of its subclasses.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from elastane.run.nouns.checkpoints import WrittenFile

Bytes: TypeAlias = bytes | bytearray | memoryview


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
