"""The lease of a store: only one controller at a time has it.

For SQLite, the lease has three parts:

- a lock on a file beside the database: one path has one controller, even if the database is removed and
  created again;
- a lock on the database file itself: one file has one controller, also if several paths lead to it (a hard
  link, a symbolic link or a bind mount);
- a note in the file beside the database, to recognize a copy of the database or an older state of it.

For PostgreSQL, the lease is an advisory lock of a connection that does nothing else.
"""

import fcntl
import os
import struct
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from elastane.cluster.controller.store.database import create_store_engine, parse_store_url
from elastane.cluster.controller.store.failures import LOCK, StoreError, translate_database_error
from elastane.cluster.controller.store.files import Identity, read_file_identity
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Decoder, Malformed

KEY = 0x656C6173
"""Key of PostgreSQL's advisory lock: an arbitrary number that no other program uses."""
PATIENCE_S = 3.0
"""Time to wait for the lease: PostgreSQL may notice the end of a controller only after the next one began."""
AGAIN_S = 0.05
BYTE = 1 << 62
"""Offset of the locked byte of the database file, far behind the bytes that SQLite locks."""
NOTE_BYTES = 8192
"""Room for a note: a path may have 4096 bytes, and JSON may double some."""


class StoreTaken(BadInput):
    pass


class LeaseLost(StoreError):
    pass


class Note(msgspec.Struct, frozen=True):
    """The last note of a controller about its store.

    Args:
        path: of the database, with links resolved.
        change: number of the last change that was seen in it.
    """

    path: str
    device: int
    inode: int
    change: int


_decode = Decoder[Note](Note, at_most_bytes=NOTE_BYTES)


class Lease:
    """The lease of a store, held until it is closed or its process ends. Take it before you open the store.

    Closing it releases the locks that SQLite has on the database in this process, so close the store first.

    Raises:
        Taken: another controller has the store.
        BadInput: the URL cannot be used.
        StoreError: the database cannot be reached.
    """

    def __init__(self, url: str) -> None:
        found = parse_store_url(url)
        self.where = found.render_as_string(hide_password=True)
        self._path = ""
        self._file: int | None = None
        self._database: int | None = None
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        # Also makes the folder of a new SQLite database.
        engine = create_store_engine(found)
        try:
            if engine.dialect.name == "sqlite":
                self._path = os.path.realpath(found.database or "")
                self._file = _open_file(f"{self._path}{LOCK}")
                self._wait_for(self._lock_beside)
                # Check before the database is opened, so that a copy keeps its journal.
                self._check_original()
                self._wait_for(self._lock_database)
            else:
                self._engine, self._connection = engine, _connect(engine, self.where)
                self._wait_for(self._lock_in_postgres)
        except BaseException:
            self.close()
            raise

    def _wait_for(self, lock: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not lock():
            if time.monotonic() > give_up_s:
                raise _make_taken_error(self.where)
            time.sleep(AGAIN_S)

    def _lock_beside(self) -> bool:
        assert self._file is not None, "it was opened"
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _lock_database(self) -> bool:
        if self._database is None:
            self._database = _open_file(self._path)
        if not _try_lock(self._database):
            return False
        opened = os.fstat(self._database)
        if read_file_identity(self._path) == (opened.st_dev, opened.st_ino):
            return True
        # The file was replaced after it was opened.
        os.close(self._database)
        self._database = None
        return False

    def _lock_in_postgres(self) -> bool:
        assert self._connection is not None, "it was opened"
        try:
            had: bool = self._connection.execute(
                text("SELECT pg_try_advisory_lock(:key)"), {"key": KEY}
            ).scalar_one()
        except DBAPIError as error:
            raise translate_database_error(error, self.where) from error
        return had

    def _check_original(self) -> None:
        """Check that this is not a copy of a store that another controller has."""
        note = self._read_note()
        if note is None or read_file_identity(self._path) == (note.device, note.inode):
            return
        original = Identity(note.device, note.inode)
        if read_file_identity(note.path) == original and not _is_free(note.path):
            raise StoreTaken(
                f"{self._path} is a copy of {note.path}, which another controller uses",
                means="two controllers would give the same devices out twice; nothing was started",
                do=f"use that controller, or end it first (`elastane down`); to run the copy beside it, with "
                f"other jobs in another ELASTANE_HOME, remove {self._path}{LOCK}",
            )

    # -- the note --------------------------------------------------------------------------------------------

    def _read_note(self) -> Note | None:
        if self._file is None:
            return None
        try:
            return _decode(os.pread(self._file, NOTE_BYTES, 0).rstrip(b"\0 \n"))
        except (Malformed, OSError):
            # An empty note has not been written yet. A torn one counts as empty.
            return None

    def read_last_change(self) -> int:
        """Return the number of the last change that was noted for this database or its original; 0: none."""
        note = self._read_note()
        return 0 if note is None else note.change

    def write_note(self, change: int) -> None:
        """Note the number of the last change, for the next controller; on a full disk the old note stays."""
        if self._file is None or self._database is None:
            return
        found = os.fstat(self._database)
        note = Note(path=self._path, device=found.st_dev, inode=found.st_ino, change=change)
        written = msgspec.json.encode(note)
        try:
            # One write of a fixed length replaces the previous note.
            os.pwrite(self._file, written.ljust(NOTE_BYTES), 0)
        except OSError:
            return

    # -- while it is held ------------------------------------------------------------------------------------

    def is_held(self) -> bool:
        """Return whether the lease is still held: a lost connection to PostgreSQL loses it."""
        if self._connection is None:
            return self._file is not None
        try:
            self._connection.execute(text("SELECT 1"))
        except Exception:  # noqa: BLE001 - any failure of the connection loses the lock
            # Close for good: SQLAlchemy would reconnect silently, without the lock.
            self.close()
            return False
        return True

    def make_lost_error(self) -> LeaseLost:
        return LeaseLost(
            f"the connection that held the store {self.where} is gone, so another controller may have it",
            means="this controller has ended; jobs continue to train, and nothing is decided meanwhile",
            do="check that the database runs and can be reached, then start the controller again",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for descriptor in (self._database, self._file):
            if descriptor is not None:
                os.close(descriptor)
        self._database = self._file = None
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None


def _make_taken_error(where: str) -> StoreTaken:
    return StoreTaken(
        f"another controller uses the store {where}",
        means="two controllers would give the same devices out twice",
        do="use that one, or end it first (`elastane down`)",
    )


def _open_file(path: str) -> int:
    try:
        return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BadInput(
            f"cannot write {path} ({error.strerror})",
            means="other controllers could not see that this one uses the store",
            do="name a store in a folder that this user can write to",
        ) from error


def _try_lock(descriptor: int) -> bool:
    """Try to lock the database for as long as this descriptor is open.

    This is an open file description lock, see fcntl(2). A plain one would be lost as soon as SQLite closes
    a connection in this process.
    """
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, BYTE, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _is_free(path: str) -> bool:
    """Return whether no controller has the database under a path."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        return _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _connect(engine: Engine, where: str) -> Connection:
    try:
        return engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    except DBAPIError as error:
        raise translate_database_error(error, where) from error
