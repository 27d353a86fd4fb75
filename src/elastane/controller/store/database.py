"""The store: one database, opened at start, and the transactions on it.

All who write do so one after the other: in SQLite by ``BEGIN IMMEDIATE``, in PostgreSQL by a lock on the row
of `tables.turns`. So numbers of events are committed in their order, and a watcher that has seen number 7
will never be shown a 6.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Dialect, Engine, create_engine, event, insert, inspect, select, update
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry

from elastane.api.errors import BadInput
from elastane.api.extras import MissingExtra
from elastane.controller.store.failures import LOCK, StoreOlder, busy, damaged, translated
from elastane.controller.store.integrity import damage
from elastane.controller.store.migrating import migrate
from elastane.controller.store.soundness import Soundness
from elastane.controller.store.tables import turns

BUSY_S = 10
CONNECTIONS = 24
UNHEARD_S = 10
"""A PostgreSQL on another machine that has said nothing for so long is away, and so is one of its clients."""
POSTGRES = {
    "options": f"-c lock_timeout={BUSY_S * 1000}"
    " -c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3",
    "connect_timeout": UNHEARD_S,
    "tcp_user_timeout": UNHEARD_S * 1000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
ONLY = 1


class Store:
    """The database of a controller.

    Args:
        url: ``sqlite:///path`` or ``postgresql://user@host/database``; a bare path is SQLite.
        prepared: somebody else has brought its schema up to date, and is still there.
        at_least: number of a change that it is known to have had; an older state of it is refused.

    Raises:
        BadInput: not a URL that can be used.
        StoreError: the database cannot be reached, is damaged or older than that, or has a newer schema.
    """

    def __init__(self, url: str, *, prepared: bool = False, at_least: int = 0) -> None:
        found = parsed(url)
        self.where = found.render_as_string(hide_password=True)
        self.soundness = Soundness(self.where)
        self.engine = connected(found)
        self._anchor: Connection | None = None
        self._one_writer = threading.Lock()
        self.commits = 0
        """Grows with every change of anything, so that a watcher need not ask the database."""
        path = os.path.realpath(found.database or "") if self.engine.dialect.name == "sqlite" else ""
        if prepared:
            return
        try:
            self._prepare(path, at_least)
        except BaseException:
            self.close()
            raise

    def _prepare(self, path: str, at_least: int) -> None:
        try:
            if path and (wrong := damage(path, create=True)):
                raise damaged(self.where, wrong)
            self._check_age(at_least)
            migrate(self.engine)
            with self.writing() as tx:
                if tx.execute(select(turns.c.change)).one_or_none() is None:
                    tx.execute(insert(turns).values(id=ONLY, change=0))
            if path:
                # Open until the end: with its last connection SQLite removes the journals.
                self._anchor = self.engine.connect()
                with self._anchor.begin():
                    read_change(self._anchor)
                self.soundness.expect(path)
                # SQLite would make a new file, or a second journal beside the database of the first.
                event.listen(self.engine, "do_connect", lambda *_: self.soundness.check_files(), insert=True)
        except sqlite3.Error as error:
            raise translated(DBAPIError(None, None, error), self.where) from error
        except DBAPIError as error:
            raise translated(error, self.where) from error

    def _check_age(self, at_least: int) -> None:
        """Go on unless changes are missing that it is known to have had.

        Raises:
            StoreOlder: they are.
        """
        if not at_least:
            return
        with self.engine.connect() as connection, connection.begin():
            there = inspect(connection).has_table(turns.name)
            found = read_change(connection) if there else 0
        if found < at_least:
            raise StoreOlder(
                f"the store {self.where} lacks changes that its last controller had made (it is at change "
                f"{found}, and {at_least} was seen)",
                means="its journal (-wal) was lost, or the file is an older one or a new one; nothing was "
                "started, because jobs may run that it does not know",
                do="put back the files as they were; or, to go on from what is there (a backup that was put "
                f"back, for example), remove the file of its name that ends in {LOCK}, then start again",
            )

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one moment and changes nothing.

        Raises:
            StoreError: the database refuses, or must not be used.
        """
        self.soundness.check()
        try:
            with self.engine.connect() as connection, connection.begin():
                yield connection
        except DBAPIError as error:
            raise self.soundness.failed(error) from error

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that nobody else writes beside; all of it happens, or nothing.

        Raises:
            StoreFull: no room for it.
            StoreBusy: somebody else has written for longer than ten seconds.
            StoreError: the database refuses, or must not be used.
        """
        self.soundness.check()
        try:
            # Threads of this process queue here rather than in SQLite, which would have them poll.
            with self._alone(), self.engine.connect() as plain:
                connection = plain.execution_options(elastane_writes=True)
                with connection.begin():
                    connection.execute(select(turns.c.change).with_for_update())
                    yield connection
                    # Not into files that nobody will find again.
                    self.soundness.check_files()
                # Here, where only one thread is: of two that count at once one could be forgotten, and no
                # watcher would look.
                self.commits += 1
        except DBAPIError as error:
            raise self.soundness.failed(error) from error

    def write_probe(self) -> None:
        """Store a change that nobody sees: goes on if changes can be made.

        Raises:
            StoreError: they cannot.
        """
        self.soundness.check()
        if self.soundness.path:
            self.soundness.check_writing()
            return
        # In PostgreSQL a value that stays the same is a new row.
        with self.writing() as tx:
            tx.execute(update(turns).values(change=turns.c.change))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._one_writer.acquire(timeout=BUSY_S):
            # A database that is held elsewhere would be waited for by each in turn, by the last for minutes.
            raise busy(self.where, f"others have waited to write for {BUSY_S} s")
        try:
            yield
        finally:
            self._one_writer.release()

    def close(self) -> None:
        if self._anchor is not None:
            self._anchor.close()
            self._anchor = None
        self.engine.dispose()


def read_change(tx: Connection) -> int:
    """Number of the last change of anything that a plan depends on."""
    found: int = tx.execute(select(turns.c.change)).scalar_one()
    return found


def count_change(tx: Connection) -> int:
    """Counts a change that a plan depends on; returns its number."""
    counted = update(turns).values(change=turns.c.change + 1).returning(turns.c.change)
    found: int = tx.execute(counted).scalar_one()
    return found


def parsed(url: str) -> URL:
    """The database that is meant, with the driver we use.

    Raises:
        BadInput: none that can be used.
    """
    if "://" not in url:
        url = f"sqlite:///{url}"
    try:
        found = make_url(url)
    except (ArgumentError, ValueError) as error:
        # Not repeated: where in it the password is, nobody can tell.
        raise BadInput(
            "the store's URL is not one of a database", do="sqlite:///PATH or postgresql://USER@HOST/NAME"
        ) from error
    if found.get_backend_name() == "sqlite":
        if found.database in {None, "", ":memory:"}:
            raise BadInput(
                "a store in memory would not survive its controller", do="name a file: sqlite:///PATH"
            )
        return found.set(drivername="sqlite+pysqlite")
    if found.get_backend_name() == "postgresql":
        return found.set(drivername="postgresql+psycopg")
    raise BadInput(
        f"{found.get_backend_name()} is not a database that a store can be in",
        do="sqlite:///PATH or postgresql://USER@HOST/NAME",
    )


def files_of(url: str) -> tuple[Path, ...]:
    """Where the store is and what is beside it, there or not; none if a server keeps it.

    Raises:
        BadInput: none that can be used.
    """
    found = parsed(url)
    if found.get_backend_name() != "sqlite":
        return ()
    # Links to one database are one store.
    path = os.path.realpath(found.database or "")
    return tuple(Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm", LOCK))


def connected(url: URL) -> Engine:
    """Connections to a database, made as they are needed.

    Raises:
        BadInput: the driver is not installed.
    """
    if url.get_backend_name() == "sqlite":
        Path(url.database or "").expanduser().parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(
            url, pool_size=CONNECTIONS, max_overflow=CONNECTIONS, connect_args={"timeout": BUSY_S}
        )
        event.listen(engine, "do_connect", _private)
        event.listen(engine, "connect", _tuned)
        event.listen(engine, "begin", _begun)
        return engine
    try:
        engine = create_engine(
            url,
            pool_size=CONNECTIONS,
            max_overflow=CONNECTIONS,
            pool_pre_ping=True,
            connect_args=POSTGRES,
        )
    except (ImportError, NoSuchModuleError) as error:
        raise MissingExtra("postgres", "a store in PostgreSQL needs its driver", str(error)) from error
    event.listen(engine, "begin", _begun_in_postgres)
    return engine


def _private(_: Dialect, __: ConnectionPoolEntry, args: list[Any], ___: dict[str, Any]) -> None:
    """Makes the file before SQLite would, for its owner only: the environment of jobs is in it.

    SQLite gives the same rights to the files it makes beside it. What keeps us from it, SQLite says itself.
    """
    # Never one that is there: to close it would take away the locks that SQLite has on it in this process.
    with suppress(OSError):
        os.close(os.open(args[0], os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _tuned(connection, _: ConnectionPoolEntry) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    # The driver must not begin transactions by itself: it would begin them as readers.
    connection.isolation_level = None
    # One damaged byte in one text must not keep anybody from reading the rows beside it.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    # FULL: what was answered survives a loss of power, not only the end of this process.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begun(connection: Connection) -> None:
    writes = connection.get_execution_options().get("elastane_writes")
    connection.exec_driver_sql(f"PRAGMA query_only={'OFF' if writes else 'ON'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _begun_in_postgres(connection: Connection) -> None:
    # Repeatable read: several tables show one moment.
    if not connection.get_execution_options().get("elastane_writes"):
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
