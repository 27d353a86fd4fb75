"""The files of an SQLite store: whether its path still leads to the opened ones, and their damage.

A removed file continues to exist for processes that have it open. A new connection would create another file
of that name, or a second journal beside a database with one in use, which destroys the database.
"""

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from elastane.common.safe_text import escape_line

JOURNALS = {"-wal": "journal (-wal)", "-shm": "journal's index (-shm)"}
"""SQLite creates them with the first connection, and removes them with the last one."""
SHOWN = 200
"""Characters of SQLite's message to show."""
BUSY_S = 10.0
VERSIONS = 2**31


class Identity(NamedTuple):
    """The identity of a file on this machine, the same for all paths that lead to it."""

    device: int
    inode: int


def read_file_identity(path: str) -> Identity | None:
    """Return the identity of the file that a path leads to; None: none exists, or it cannot be read."""
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


def find_damage(path: str, *, thorough: bool = False, create: bool = False) -> str:
    """Return the damage in the content of a database; empty: none was found.

    It reads the whole database, which takes about a second per GiB in the page cache. Other threads run
    meanwhile.

    Args:
        thorough: also compare indices with their tables, which takes several times as long.
        create: a missing file counts as undamaged, because it will be created.

    Raises:
        sqlite3.Error: it could not be read to its end, for a reason other than its content.
    """
    if create and not Path(path).exists():
        return ""
    try:
        with closing(_open(path)) as connection:
            check = "integrity_check" if thorough else "quick_check"
            found = [row[0] for row in connection.execute(f"PRAGMA {check}(1)")]
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return escape_line(str(error), SHOWN)
    return "" if found == ["ok"] else escape_line("; ".join(map(str, found)), SHOWN)


def is_damage(error: BaseException | None) -> bool:
    """Return whether this error of SQLite means that the file's content differs from what was written."""
    name: str = getattr(error, "sqlite_errorname", "") or ""
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT"))


def write_probe_page(path: str, check_files: Callable[[], None]) -> None:
    """Write and sync one page, to check that changes can be stored.

    It changes a number in the header that SQLite reserves for applications, and that Elastane does not read.

    Args:
        check_files: raises if the files are not those of the other connections. The first read opens the
            journal, or makes a second one if it was removed, and a page there would void the first one.

    Raises:
        sqlite3.Error: it cannot be written.
    """
    with closing(_open(path)) as connection:
        # SQLite would not write an unchanged value.
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        check_files()
        connection.execute(f"PRAGMA user_version={(int(version) + 1) % VERSIONS}")


def _open(path: str) -> sqlite3.Connection:
    # Mode rw creates no file: a removed store must stay missing.
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=rw", uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA synchronous=FULL")
    except sqlite3.Error:
        # Otherwise it would close last, and only the last one writes the journal to the database.
        connection.close()
        raise
    return connection
