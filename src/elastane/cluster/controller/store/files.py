"""The files of an SQLite store, and whether its path still leads to the opened ones.

A removed file continues to exist for processes that have it open. A new connection would create another file
of that name, or a second journal beside a database with one in use, which destroys the database.
"""

import os
import threading
from typing import NamedTuple

JOURNALS = {"-wal": "journal (-wal)", "-shm": "journal's index (-shm)"}
"""SQLite creates them with the first connection, and removes them with the last one."""


class Identity(NamedTuple):
    """The identity of a file on this machine, the same for all paths that lead to it."""

    device: int
    inode: int


def read_file_identity(path: str) -> Identity | None:
    """Return the identity of the file that a path leads to; None: there is none, or it cannot be read."""
    found = _stat(path)
    return None if found is None else Identity(found.st_dev, found.st_ino)


class StoreFiles:
    """The database and its journals, as this object found them. An open connection keeps the journals.

    Args:
        path: of the database, with links resolved.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._identity = read_file_identity(path)
        self._journals = {suffix: read_file_identity(path + suffix) for suffix in JOURNALS}
        self._size = 0

    def find_problem(self) -> str:
        """Return what has happened to the files, without a path; empty: they are the same."""
        found = _stat(self.path)
        if found is None:
            return "the store's file was removed, or cannot be reached"
        if (found.st_dev, found.st_ino) != self._identity:
            return "the store's file was replaced by another file"
        for suffix, identity in self._journals.items():
            if read_file_identity(self.path + suffix) != identity:
                return f"the store's {JOURNALS[suffix]} was removed or replaced"
        return ""

    def has_shrunk(self) -> bool:
        """Return whether the database has become smaller since the last call.

        It shrinks if it is compacted (``VACUUM``), truncated or overwritten.
        """
        found = _stat(self.path)
        with self._lock:
            before, self._size = self._size, 0 if found is None else found.st_size
        return found is not None and found.st_size < before


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - called before every transaction
    except OSError:
        return None
