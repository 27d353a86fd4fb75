"""Checks of an SQLite store, on a connection of their own without a cache."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from urllib.parse import quote

from elastane.common.safe_text import escape_line

SHOWN = 200
"""Characters of SQLite's message to show."""
BUSY_S = 10.0
VERSIONS = 2**31


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
    if create and not os.path.exists(path):  # noqa: PTH110
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
        path: of the database.
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
