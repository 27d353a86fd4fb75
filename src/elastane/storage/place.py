"""A place for checkpoints: a root under which files are written whole, read in pieces, listed and deleted.

Names of files are relative to the root, with slashes. Every method raises `StorageError` or one of its kinds,
and nothing else.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeAlias

from elastane.api.checkpoints import Written
from elastane.api.errors import BadInput

Bytes: TypeAlias = bytes | bytearray | memoryview


class Reading(Protocol):
    """An open file. Several threads may read at once."""

    @property
    def bytes(self) -> int:
        """Its size."""
        ...

    def into(self, offset: int, view: memoryview) -> None:
        """Fill a writable view with the bytes from ``offset`` on.

        Raises:
            Unreadable: the file ends before.
        """
        ...


class Place(Protocol):
    """A root on some file system."""

    @property
    def url(self) -> str:
        """The root, for people."""
        ...

    @property
    def readers(self) -> int:
        """How many reads at once pay off."""
        ...

    def write(self, name: str, buffers: Iterable[Bytes]) -> Written:
        """Write a file, replacing what was there; durable when this returns, directories included.

        The buffers are taken one after the other and not copied; they must not change meanwhile. A file
        whose writing failed may be half there.
        """
        ...

    def read(self, name: str) -> bytes:
        """A whole small file."""
        ...

    def reading(self, name: str) -> AbstractContextManager[Reading]: ...

    def files(self, directory: str) -> dict[str, int]:
        """Files directly in a directory, with their sizes in bytes; none if it does not exist."""
        ...

    def directories(self) -> list[str]:
        """Directories directly under the root, sorted; none if the root does not exist."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file; it need not exist."""
        ...

    def delete_directory(self, directory: str) -> None:
        """Delete a directory and all in it; it need not exist."""
        ...


def open_place(url: str, inside: Path | None = None) -> Place:
    """The place at a path or URL. Nothing is touched or created yet.

    Args:
        url: or path.
        inside: of a path, a directory above it that must stay what it is; see `elastane.storage.local`.

    Raises:
        BadInput: no file system for this URL is installed.
    """
    from elastane.storage.local import LocalPlace  # noqa: PLC0415 - siblings that know this protocol

    scheme, separator, rest = url.partition("://")
    if not separator or scheme in ("file", "local"):
        return LocalPlace(rest if separator else url, inside)
    try:
        from elastane.storage.remote import remote_place  # noqa: PLC0415 - fsspec only where it is needed
    except ImportError as error:
        raise no_file_system(url, error) from error
    return remote_place(url)


def no_file_system(url: str, error: Exception) -> BadInput:
    s3 = url.startswith(("s3:", "s3a:"))
    return BadInput(
        f"no file system for {url}: {error}",
        do="pip install 'elastane[s3]'" if s3 else "install the fsspec file system of that URL",
    )
