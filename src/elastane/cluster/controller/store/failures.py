"""The errors of the store.

StoreError
├── StoreFull      the disk is full; the transaction was rolled back, and older data is intact
├── StoreBusy      another transaction held the database for too long
├── UnreadableRecord  a declaration or a report cannot be read, and nothing can be decided without it
├── StoreDamaged   its content differs from what was written
├── StoreUnusable  a check of its files or of its content fails, so it is not used
├── StoreOlder     it lacks changes that it is known to have had
└── StoreOfOtherVersion  a newer version of Elastane has written it, or a build from before 0.1.0
"""

import sqlite3

from sqlalchemy.exc import DBAPIError

from elastane.cluster.controller.store.files import is_damage
from elastane.common.errors import ElastaneError
from elastane.common.exit_codes import ExitCode
from elastane.common.safe_text import escape_line

LOCK = ".lock"
"""Suffix of the file beside an SQLite database; see `elastane.cluster.controller.store.lease`."""
SHOWN = 200
SQLITE_READ_ONLY = {"SQLITE_READONLY", "SQLITE_READONLY_DIRECTORY", "SQLITE_READONLY_CANTINIT"}
SQLITE_BUSY = {"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_BUSY_SNAPSHOT"}
POSTGRES_FULL = {"53100"}
POSTGRES_DAMAGED = {"XX001", "XX002"}
POSTGRES_BUSY = {"55P03", "40001", "40P01", "53300", "57P03"}


class StoreError(ElastaneError):
    exit_code = ExitCode.FAILED


class StoreFull(StoreError):
    pass


class StoreBusy(StoreError):
    pass


class UnreadableRecord(StoreError):
    """A record that plans depend on, such as ``pool local``, cannot be read."""

    def __init__(self, what: str, why: str, *, do: str) -> None:
        self.record, self.why = what, why
        super().__init__(
            f"the stored record of {what} cannot be read: {why}",
            means="nothing is decided until it can be read, because jobs might get more than they may have; "
            "they continue unchanged, and can be listed and described",
            do=do,
        )


class StoreDamaged(StoreError):
    pass


class StoreUnusable(StoreError):
    pass


class StoreOlder(StoreError):
    pass


class StoreOfOtherVersion(StoreError):
    pass


def translate_database_error(error: DBAPIError, where: str) -> StoreError:
    """Translate an error of the database at ``where``, its URL without the password."""
    name, state = _read_codes(error.orig)
    if is_damage(error.orig) or state in POSTGRES_DAMAGED:
        return make_damage_error(where, str(error.orig))
    detail = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
    if name == "SQLITE_FULL" or state in POSTGRES_FULL:
        return StoreFull(
            f"the disk under the store {where} is full ({detail})",
            means="the change was not made; stored data is intact, and jobs continue to train",
            do="free some space, then try again",
        )
    if name in SQLITE_BUSY or state in POSTGRES_BUSY:
        return make_busy_error(where, detail)
    if name in SQLITE_READ_ONLY:
        return StoreError(
            f"the store {where} cannot be written ({detail})",
            means="the change was not made; stored data is intact, and jobs continue to train",
            do="make its file system writable again (`findmnt`, `dmesg`), then try again",
        )
    return StoreError(
        f"the store {where} reports an error ({detail})",
        means="the change was not made; jobs continue to train, but nothing can be decided",
        do="check that the database runs, can be reached and can be written",
    )


def make_damage_error(where: str, detail: str) -> StoreDamaged:
    return StoreDamaged(
        f"the store {where} is damaged ({escape_line(detail, SHOWN)})",
        means="its content may be wrong, so it is not used; jobs continue to train",
        do="end the controller (`elastane down`), replace the store by a backup, remove the file beside it "
        f"that ends in {LOCK}, and start the controller again",
    )


def make_busy_error(where: str, detail: str) -> StoreBusy:
    return StoreBusy(
        f"the store {where} is busy ({detail})",
        means="the change was not made: another transaction has held the database for too long",
        do="try again; if it stays busy, look for another process that has the database open",
    )


def _read_codes(original: BaseException | None) -> tuple[str, str]:
    """Return SQLite's name of an error and PostgreSQL's SQLSTATE; each is empty if it does not apply."""
    if isinstance(original, sqlite3.Error):
        # Extended codes begin with the name of the primary one.
        name: str = getattr(original, "sqlite_errorname", "")
        return ("SQLITE_BUSY" if name.startswith("SQLITE_BUSY") else name), ""
    return "", getattr(original, "sqlstate", None) or ""
