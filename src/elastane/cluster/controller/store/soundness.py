"""The soundness of a store: its files are the opened ones, and their content is undamaged.

The check before each transaction takes a few microseconds. The monitor reads all of the database
(`elastane.cluster.controller.store.monitor`).
"""

import sqlite3
import threading

from sqlalchemy.exc import DBAPIError

from elastane.cluster.controller.store.condition import Condition
from elastane.cluster.controller.store.failures import (
    StoreDamaged,
    StoreError,
    StoreUnusable,
    translate_database_error,
)
from elastane.cluster.controller.store.files import StoreFiles, find_damage, write_probe_page

PUT_BACK = (
    "restore the same files, and the controller uses them again by itself; or end it (`elastane down`) and "
    "start it with the present store, or with a backup"
)
DAMAGED = "the store is damaged"
RESTORE = (
    "end the controller (`elastane down`), replace the store by a backup as docs/operating.md describes, and "
    "start it again"
)


class Soundness:
    """The soundness of the store at a URL, which is without its password here. Thread-safe."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.condition = Condition(where)
        self._files: StoreFiles | None = None
        self._one_check = threading.Lock()

    @property
    def path(self) -> str:
        """The path of the database; empty: it has no file, or `expect_files` was not called yet."""
        return "" if self._files is None else self._files.path

    def expect_files(self, path: str) -> None:
        """Expect from now on that the database's file and its journals stay the same.

        Keep a connection open for as long, because SQLite removes the journals with the last one.
        """
        self._files = StoreFiles(path)

    def check(self) -> None:
        """Check that the store may be read and written."""
        try:
            self.check_files()
        except StoreUnusable:
            # The oldest problem is raised below.
            pass
        else:
            if self.condition.has("file") or (self._files is not None and self._files.has_shrunk()):
                self._use_again()
        problem = self.condition.find_unusable()
        if problem is not None:
            raise self._make_unusable_error(problem.what, problem.do)

    def check_files(self) -> None:
        """Check that the files are the opened ones."""
        wrong = "" if self._files is None else self._files.find_problem()
        if wrong:
            self.condition.report("file", wrong, PUT_BACK)
            raise self._make_unusable_error(wrong, PUT_BACK)

    def check_content(self) -> None:
        """Read all of an SQLite database, and record whether its content is undamaged.

        This takes about a second per GiB. While the database counts as damaged, its indices are checked too,
        because SQLite may have found the damage there.
        """
        if self._files is None:
            return
        with self._one_check:
            try:
                wrong = find_damage(self._files.path, thorough=self.condition.has("integrity"))
            except sqlite3.Error as error:
                raise translate_database_error(DBAPIError(None, None, error), self.where) from error
            if wrong:
                self.condition.report("integrity", DAMAGED, RESTORE, detail=wrong)
            else:
                self.condition.clear("integrity")

    def check_writing(self) -> None:
        """Check that SQLite can store a change."""
        if self._files is None:
            return
        try:
            write_probe_page(self._files.path, self.check_files)
        except sqlite3.Error as error:
            raise self.translate_error(DBAPIError(None, None, error)) from error

    def translate_error(self, error: DBAPIError) -> StoreError:
        """Translate an error of the database. If it shows damage, record the damage."""
        found = translate_database_error(error, self.where)
        if isinstance(found, StoreDamaged):
            self.condition.report("integrity", DAMAGED, RESTORE, detail=str(error.orig))
        return found

    def _use_again(self) -> None:
        """Use files again that are back or have shrunk, if their content can be read."""
        try:
            self.check_content()
        except StoreError as error:
            self.condition.report("file", "the store's file cannot be read", PUT_BACK, detail=error.what)
            return
        self.condition.clear("file")

    def _make_unusable_error(self, what: str, do: str) -> StoreUnusable:
        return StoreUnusable(
            f"{what} ({self.where})",
            means="the controller no longer uses it, so nothing is decided; jobs continue to train",
            do=do,
        )
