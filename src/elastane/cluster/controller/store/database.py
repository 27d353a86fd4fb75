"""The database of the store, opened at start, and its transactions.

Writing transactions run one after the other: in SQLite by ``BEGIN IMMEDIATE``, in PostgreSQL by a lock on the
row of `tables.turns`. So events are committed in the order of their numbers, and a watcher that has seen
event 7 never gets event 6 later.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Dialect, Engine, create_engine, event, insert, inspect, select, update
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry

from elastane.cluster.controller.store.failures import (
    LOCK,
    StoreOfOtherVersion,
    StoreOlder,
    make_busy_error,
    make_damage_error,
    translate_database_error,
)
from elastane.cluster.controller.store.files import find_damage
from elastane.cluster.controller.store.soundness import Soundness
from elastane.cluster.controller.store.tables import turns
from elastane.common.errors import BadInput
from elastane.common.extras import MissingExtra

BUSY_S = 10
CONNECTIONS = 24
UNHEARD_S = 10
"""After this silence, a PostgreSQL on another machine counts as unreachable, and so does its client."""
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
SCRIPTS = Path(__file__).with_name("migrations")


class Store:
    """The database of a controller.

    Args:
        url: ``sqlite:///path`` or ``postgresql://user@host/database``; a bare path is SQLite.
        prepared: another process has migrated the schema, and still has the store open.
        at_least: number of a change that the store is known to have had; an older state is refused.

    Raises:
        BadInput: the URL cannot be used.
        StoreError: the database cannot be reached, is damaged, lacks that change, or has another schema.
    """

    def __init__(self, url: str, *, prepared: bool = False, at_least: int = 0) -> None:
        found = parse_store_url(url)
        self.where = found.render_as_string(hide_password=True)
        self.soundness = Soundness(self.where)
        self.engine = create_store_engine(found)
        self._anchor: Connection | None = None
        self._one_writer = threading.Lock()
        self.commits = 0
        """Grows with every change, so that a watcher need not query the database."""
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
            if path and (wrong := find_damage(path, create=True)):
                raise make_damage_error(self.where, wrong)
            self._check_age(at_least)
            migrate(self.engine)
            with self.begin_write() as tx:
                if tx.execute(select(turns.c.change)).one_or_none() is None:
                    tx.execute(insert(turns).values(id=ONLY, change=0))
            if path:
                # This connection stays open, because SQLite removes the journals with the last one.
                self._anchor = self.engine.connect()
                with self._anchor.begin():
                    read_change(self._anchor)
                self.soundness.expect_files(path)
                # Otherwise SQLite could make a new file, or a second journal beside a replaced database.
                event.listen(self.engine, "do_connect", lambda *_: self.soundness.check_files(), insert=True)
        except sqlite3.Error as error:
            raise translate_database_error(DBAPIError(None, None, error), self.where) from error
        except DBAPIError as error:
            raise translate_database_error(error, self.where) from error

    def _check_age(self, at_least: int) -> None:
        """Check that the store has every change that it is known to have had."""
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
                do="restore the original files; or, to continue with this store (a restored backup, for "
                f"example), remove the file beside it that ends in {LOCK}, then start again",
            )

    @contextmanager
    def begin_read(self) -> Iterator[Connection]:
        """Begin a transaction that reads one state of the store and changes nothing.

        Raises:
            StoreError: the database refuses, or must not be used.
        """
        self.soundness.check()
        try:
            with self.engine.connect() as connection, connection.begin():
                yield connection
        except DBAPIError as error:
            raise self.soundness.translate_error(error) from error

    @contextmanager
    def begin_write(self) -> Iterator[Connection]:
        """Begin a transaction that writes, while no other one does. It commits completely or not at all.

        Raises:
            StoreFull: the disk is full.
            StoreBusy: another transaction has written for longer than ten seconds.
            StoreError: the database refuses, or must not be used.
        """
        self.soundness.check()
        try:
            # Threads of this process queue here, because SQLite would let them poll.
            with self._queue_writers(), self.engine.connect() as plain:
                connection = plain.execution_options(elastane_writes=True)
                with connection.begin():
                    connection.execute(select(turns.c.change).with_for_update())
                    yield connection
                    # A commit to removed files would be lost.
                    self.soundness.check_files()
                # Only one thread is here: concurrent increments could be lost, and watchers would miss one.
                self.commits += 1
        except DBAPIError as error:
            raise self.soundness.translate_error(error) from error

    def write_probe(self) -> None:
        """Write a change without effect, to check that changes can be stored."""
        self.soundness.check()
        if self.soundness.path:
            self.soundness.check_writing()
            return
        # PostgreSQL writes a new row even if the value stays the same.
        with self.begin_write() as tx:
            tx.execute(update(turns).values(change=turns.c.change))

    @contextmanager
    def _queue_writers(self) -> Iterator[None]:
        if not self._one_writer.acquire(timeout=BUSY_S):
            # If another process holds the database, each thread would wait in turn, the last for minutes.
            raise make_busy_error(self.where, f"other writers have held it for {BUSY_S} s")
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
    """Return the number of the last change that a plan depends on."""
    found: int = tx.execute(select(turns.c.change)).scalar_one()
    return found


def count_change(tx: Connection) -> int:
    """Count a change that a plan depends on, and return its number."""
    counted = update(turns).values(change=turns.c.change + 1).returning(turns.c.change)
    found: int = tx.execute(counted).scalar_one()
    return found


def parse_store_url(url: str) -> URL:
    """Parse the URL of a store, and set its driver."""
    if "://" not in url:
        url = f"sqlite:///{url}"
    try:
        found = make_url(url)
    except (ArgumentError, ValueError) as error:
        # The URL is not quoted, because it may contain a password.
        raise BadInput(
            "the URL of the store is not a URL of a database",
            do="write sqlite:///PATH or postgresql://USER@HOST/NAME",
        ) from error
    if found.get_backend_name() == "sqlite":
        if found.database in {None, "", ":memory:"}:
            raise BadInput("a store in memory would not survive its controller", do="write sqlite:///PATH")
        return found.set(drivername="sqlite+pysqlite")
    if found.get_backend_name() == "postgresql":
        return found.set(drivername="postgresql+psycopg")
    raise BadInput(
        f"a store cannot be in a database of the kind {found.get_backend_name()}",
        do="write sqlite:///PATH or postgresql://USER@HOST/NAME",
    )


def list_store_files(url: str) -> tuple[Path, ...]:
    """Return the paths of the store and of the files beside it, existing or not; none for a server."""
    found = parse_store_url(url)
    if found.get_backend_name() != "sqlite":
        return ()
    # Links to one database are one store.
    path = os.path.realpath(found.database or "")
    return tuple(Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm", LOCK))


def create_store_engine(url: URL) -> Engine:
    """Create the engine of SQLAlchemy for a database. It connects when it is first used.

    Raises:
        BadInput: the driver is not installed.
    """
    if url.get_backend_name() == "sqlite":
        Path(url.database or "").expanduser().parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(
            url, pool_size=CONNECTIONS, max_overflow=CONNECTIONS, connect_args={"timeout": BUSY_S}
        )
        event.listen(engine, "do_connect", _create_private_file)
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        engine = create_engine(
            url, pool_size=CONNECTIONS, max_overflow=CONNECTIONS, pool_pre_ping=True, connect_args=POSTGRES
        )
    except (ImportError, NoSuchModuleError) as error:
        raise MissingExtra("postgres", "a store in PostgreSQL needs its driver", str(error)) from error
    event.listen(engine, "begin", _begin_postgres)
    return engine


def _create_private_file(_: Dialect, __: ConnectionPoolEntry, args: list[Any], ___: dict[str, Any]) -> None:
    """Create the file before SQLite does, for its owner only: it holds the environments of jobs.

    SQLite gives the same mode to the files beside it. If the file cannot be created, SQLite reports why.
    """
    # Only a new file: closing an existing one would release SQLite's locks on it in this process.
    with suppress(OSError):
        os.close(os.open(args[0], os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _configure_sqlite(connection, _: ConnectionPoolEntry) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    # The driver must not begin transactions: it would begin them as readers.
    connection.isolation_level = None
    # A damaged byte in one text must not make the other rows unreadable.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    # FULL: committed changes survive a loss of power, not only the end of this process.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("elastane_writes")
    connection.exec_driver_sql(f"PRAGMA query_only={'OFF' if writes else 'ON'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _begin_postgres(connection: Connection) -> None:
    # Repeatable read: all queries of the transaction see one state.
    if not connection.get_execution_options().get("elastane_writes"):
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


def migrate(engine: Engine) -> None:
    """Run all missing migrations, in one transaction.

    Raises:
        StoreOfOtherVersion: a version with another schema of Elastane has written the database.
    """
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    scripts = ScriptDirectory.from_config(config)
    with engine.connect() as plain:
        connection = plain.execution_options(elastane_writes=True)
        with connection.begin():
            at = MigrationContext.configure(connection).get_current_revision()
            known = {script.revision for script in scripts.walk_revisions()}
            if at is not None and at not in known:
                raise StoreOfOtherVersion(
                    f"the store is at schema {at}, which this version of Elastane does not know",
                    means="a newer version has written it, or a build from before 0.1.0; "
                    "this one would damage it",
                    do="start that version, or use another store",
                )
            if at != scripts.get_current_head():
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
