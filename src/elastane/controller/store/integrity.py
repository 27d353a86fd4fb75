"""Checks of an SQLite store from a connection of its own, which has nothing cached."""

import os
import sqlite3
from contextlib import closing
from urllib.parse import quote

from elastane.api.safe_text import escape_line

SHOWN = 200
"""Characters of what SQLite says is wrong."""
BUSY_S = 10.0
VERSIONS = 2**31


def damage(path: str, *, thorough: bool = False, create: bool = False) -> str:
    """Return what is wrong with the content of a database; empty: nothing was found.

    It reads the whole database: about a second per GiB that the kernel has cached. Other threads go on
    meanwhile.

    Args:
        path: of the file.
        thorough: also compare indices with their tables, which takes several times as long.
        create: one that is not there is not damaged.

    Raises:
        sqlite3.Error: it could not be read to its end, for another reason than its content.
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
    """Whether SQLite says by this error that the file's content is not what it wrote."""
    name: str = getattr(error, "sqlite_errorname", "") or ""
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT"))


def write_probe(path: str) -> None:
    """Write one page and have it synced: proves that changes can be stored.

    Nothing that anybody reads is changed: SQLite leaves this number in the header to applications.

    Raises:
        sqlite3.Error: it cannot be written.
    """
    with closing(_open(path)) as connection:
        # The same value again would not be written at all.
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version={(int(version) + 1) % VERSIONS}")


def _open(path: str) -> sqlite3.Connection:
    # Never creates one: a store that was removed meanwhile must stay missed.
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=rw", uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA synchronous=FULL")
    return connection
