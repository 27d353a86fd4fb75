"""One controller at a time has a store."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, text

from elastane.api.errors import BadInput
from elastane.controller.store.database import Store

KEY = 0x656C6173
"""Of PostgreSQL's advisory lock; any number that nobody else uses."""


class Taken(BadInput):
    pass


class Lease:
    """Held until it is closed, or its process ends, however that ends.

    Of SQLite it is the lock of a file beside the database; of PostgreSQL an advisory lock of a connection
    that does nothing else.

    Raises:
        Taken: another controller has the store.
    """

    def __init__(self, store: Store) -> None:
        self._file: int | None = None
        self._connection: Connection | None = None
        database = store.engine.url.database or ""
        if store.engine.dialect.name == "sqlite":
            self._file = os.open(
                Path(database).with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600
            )
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self.close()
                raise _taken(store) from error
        else:
            self._connection = store.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            if not self._connection.execute(
                text("SELECT pg_try_advisory_lock(:key)"), {"key": KEY}
            ).scalar_one():
                self.close()
                raise _taken(store)

    def held(self) -> bool:
        """Whether it still is: a lost connection to PostgreSQL loses it."""
        if self._connection is None:
            return self._file is not None
        try:
            self._connection.execute(text("SELECT 1"))
        except Exception:  # noqa: BLE001 - whatever is wrong with the connection, the lock is gone with it
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None


def _taken(store: Store) -> Taken:
    return Taken(
        f"another controller has the store {store.where}",
        means="two would give the same devices twice",
        do="use that one, or end it first (`elastane down`)",
    )
