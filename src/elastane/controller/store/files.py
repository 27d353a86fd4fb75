"""The files of an SQLite store: whether those under its path are still the ones that were opened.

A removed file goes on living for whoever has it open. New connections would make another file of that name,
or write a second journal beside a database whose first one is still in use, which destroys it.
"""

import os
import threading
from typing import NamedTuple

JOURNALS = {"-wal": "journal (-wal)", "-shm": "journal's index (-shm)"}
"""SQLite makes them when the first connection opens, and removes them when the last one closes."""


class Identity(NamedTuple):
    """What tells a file from every other file of this machine, whatever paths lead to it."""

    device: int
    inode: int


def identity_of(path: str) -> Identity | None:
    """Return the identity of the file that a path leads to; None if there is none, or it cannot be told."""
    found = _stat(path)
    return None if found is None else Identity(found.st_dev, found.st_ino)


class StoreFiles:
    """The database and its journals, as they are when this is made; some connection keeps the journals there.

    Args:
        path: of the database, with links resolved.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._identity = identity_of(path)
        self._journals = {suffix: identity_of(path + suffix) for suffix in JOURNALS}
        self._size = 0

    def problem(self) -> str:
        """Return what has become of the files, in words without a path; empty: they are as they were."""
        found = _stat(self.path)
        if found is None:
            return "the store's file was removed, or cannot be reached"
        if (found.st_dev, found.st_ino) != self._identity:
            return "the store's file was replaced by another file"
        for suffix, identity in self._journals.items():
            if identity_of(self.path + suffix) != identity:
                return f"the store's {JOURNALS[suffix]} was removed or replaced"
        return ""

    def has_shrunk(self) -> bool:
        """Whether the database has become smaller since this was last asked.

        It does so when somebody compacts it (``VACUUM``), and when it is cut off or written over.
        """
        found = _stat(self.path)
        with self._lock:
            before, self._size = self._size, 0 if found is None else found.st_size
        return found is not None and found.st_size < before


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - asked before every transaction
    except OSError:
        return None
