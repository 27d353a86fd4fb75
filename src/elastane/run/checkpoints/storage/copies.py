"""Copies of files and folders between storages, each file compared with what was read."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress

from elastane.common.errors import BadInput, StorageError
from elastane.run.checkpoints.storage.hashing import BATCH_BYTES, hash_file
from elastane.run.checkpoints.storage.interface import Storage, StoredFile
from elastane.run.nouns.checkpoints import WrittenFile


def read_pieces(file: StoredFile) -> Iterator[bytearray]:
    """Yield the content of a file in pieces of at most `BATCH_BYTES`."""
    for offset in range(0, file.bytes, BATCH_BYTES):
        piece = bytearray(min(BATCH_BYTES, file.bytes - offset))
        file.read_into(offset, memoryview(piece))
        yield piece


def copy_file(source: Storage, name: str, into: Storage) -> WrittenFile:
    """Copy a file under the same name into another storage.

    Raises:
        StorageError: a storage does not answer; the other one may have a part of the file.
    """
    with source.open_file(name) as file:
        return into.write(name, read_pieces(file))


def check_is_empty(storage: Storage) -> None:
    """Check that the storage of ``--out`` has no file.

    Raises:
        BadInput: it has some.
    """
    if storage.list_directories() or storage.list_files(""):
        raise BadInput(
            f"{storage.url} has files already",
            means="nothing is overwritten, so nothing was written",
            do="choose another --out, or delete them",
        )


def upload_files(source: Storage, names: list[str], into: Storage) -> dict[str, WrittenFile]:
    """Copy files into an empty storage, in their order, and read each of them back.

    If one cannot be copied, those that were are deleted, so that no reader takes a part for the whole.

    Raises:
        StorageError: a file cannot be written, or reads back otherwise.
    """
    copied: dict[str, WrittenFile] = {}
    with ExitStack() as undo:
        for name in names:
            undo.callback(_delete, into, name)
            copied[name] = _copy_and_compare(source, name, into)
        undo.pop_all()
    return copied


def _delete(storage: Storage, name: str) -> None:
    with suppress(StorageError):
        storage.delete(name)


def _copy_and_compare(source: Storage, name: str, into: Storage) -> WrittenFile:
    copied = copy_file(source, name, into)
    with into.open_file(name) as file:
        if hash_file(file, into.readers) == copied:
            return copied
    raise StorageError(
        f"{into.url}/{name} reads back with other bytes",
        means="the store does not keep what it has accepted, so the copy was deleted",
        do="copy again, or use another store",
    )
