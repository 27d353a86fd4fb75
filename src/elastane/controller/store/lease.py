"""One controller at a time has a store."""

import fcntl
import os
import time
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from elastane.api.errors import BadInput
from elastane.controller.store.database import LOCK, connected, parsed
from elastane.controller.store.failures import StoreError, translated

KEY = 0x656C6173
"""Of PostgreSQL's advisory lock; any number that nobody else uses."""
PATIENCE_S = 3.0
"""PostgreSQL may hear of a controller's death a moment later than whoever starts the next one."""
AGAIN_S = 0.05


class Taken(BadInput):
    pass


class Lost(StoreError):
    pass


class Lease:
    """Held until it is closed, or its process ends, however that ends. To be had before the store is opened.

    Of SQLite it is the lock of a file beside the database; of PostgreSQL an advisory lock of a connection
    that does nothing else.

    Args:
        url: of the store.

    Raises:
        Taken: another controller has the store.
        BadInput: not a URL that can be used.
        StoreError: the database cannot be reached.
    """

    def __init__(self, url: str) -> None:
        found = parsed(url)
        self.where = found.render_as_string(hide_password=True)
        self._file: int | None = None
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        # Also makes the folder of a new SQLite database.
        engine = connected(found)
        try:
            if engine.dialect.name == "sqlite":
                # Links to one database are one store.
                self._open_file(f"{os.path.realpath(found.database or '')}{LOCK}")
            else:
                self._engine, self._connection = engine, _connection_of(engine, self.where)
            self._take()
        except BaseException:
            self.close()
            raise

    def _open_file(self, path: str) -> None:
        try:
            self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BadInput(
                f"cannot write {path} ({error.strerror})",
                means="nobody could know that this controller has the store",
                do="name a store in a folder that can be written to",
            ) from error

    def _take(self) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not self._taken():
            if time.monotonic() > give_up_s:
                raise Taken(
                    f"another controller has the store {self.where}",
                    means="two would give the same devices twice",
                    do="use that one, or end it first (`elastane down`)",
                )
            time.sleep(AGAIN_S)

    def _taken(self) -> bool:
        if self._file is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True
        assert self._connection is not None, "it is a file or a connection"  # noqa: S101
        try:
            had: bool = self._connection.execute(
                text("SELECT pg_try_advisory_lock(:key)"), {"key": KEY}
            ).scalar_one()
        except DBAPIError as error:
            raise translated(error, self.where) from error
        return had

    def held(self) -> bool:
        """Whether it still is: a lost connection to PostgreSQL loses it."""
        if self._connection is None:
            return self._file is not None
        try:
            self._connection.execute(text("SELECT 1"))
        except Exception:  # noqa: BLE001 - whatever is wrong with the connection, the lock is gone with it
            # For good: the connection would be made again without a word, and the lock would not.
            self.close()
            return False
        return True

    def lost(self) -> Lost:
        return Lost(
            f"the connection that held the store {self.where} is gone, so another controller may have it",
            means="this one has ended; jobs go on training, and nothing is decided meanwhile",
            do="see that the database runs and can be reached, then start the controller again",
        )

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
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None


def _connection_of(engine: Engine, where: str) -> Connection:
    try:
        return engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    except DBAPIError as error:
        raise translated(error, where) from error
