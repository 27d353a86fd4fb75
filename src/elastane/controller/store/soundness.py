"""Whether a store may be used: its files are those that were opened, and their content is whole.

What is asked before every transaction costs a few microseconds; reading all of the database is for the
monitor (`elastane.controller.store.monitor`).
"""

import sqlite3
import threading

from sqlalchemy.exc import DBAPIError

from elastane.controller.store.condition import Condition
from elastane.controller.store.failures import StoreDamaged, StoreError, StoreUnusable, translated
from elastane.controller.store.files import StoreFiles
from elastane.controller.store.integrity import damage, write_probe

PUT_BACK = (
    "put the same files back, then the controller uses them again by itself; or end it (`elastane down`) and "
    "start it with the store that is there now, or with a backup"
)
DAMAGED = "the store is damaged"
RESTORE = (
    "end the controller (`elastane down`), put a backup in the place of the store as docs/operating.md says, "
    "and start it again"
)


class Soundness:
    """Of one store, for all threads that use it.

    Args:
        where: the store, without its password.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.condition = Condition(where)
        self._files: StoreFiles | None = None
        self._one_check = threading.Lock()

    @property
    def path(self) -> str:
        """Of the database; empty if it is not in a file, or nothing is expected of the file yet."""
        return "" if self._files is None else self._files.path

    def expect(self, path: str) -> None:
        """From now on the database's file and its journals must stay what they are.

        A connection must be open for as long as that is so, or SQLite itself removes the journals.
        """
        self._files = StoreFiles(path)

    def check(self) -> None:
        """Go on if what is stored may be read and written.

        Raises:
            StoreUnusable: its files are not those that were opened, or their content is damaged.
        """
        try:
            self.check_files()
        except StoreUnusable:
            # The oldest problem is the one to tell.
            pass
        else:
            if self.condition.has("file") or (self._files is not None and self._files.has_shrunk()):
                self._use_again()
        problem = self.condition.unusable()
        if problem is not None:
            raise self._unusable(problem.what, problem.do)

    def check_files(self) -> None:
        """Go on if the files are those that were opened.

        Raises:
            StoreUnusable: they are not.
        """
        wrong = "" if self._files is None else self._files.problem()
        if wrong:
            self.condition.report("file", wrong, PUT_BACK)
            raise self._unusable(wrong, PUT_BACK)

    def check_content(self) -> None:
        """Read all of an SQLite database, and record whether its content is whole.

        It takes about a second per GiB. While it counts as damaged, its indices are read too, because SQLite
        may have found the damage there.

        Raises:
            StoreError: it could not be read.
        """
        if self._files is None:
            return
        with self._one_check:
            try:
                wrong = damage(self._files.path, thorough=self.condition.has("integrity"))
            except sqlite3.Error as error:
                raise translated(DBAPIError(None, None, error), self.where) from error
            if wrong:
                self.condition.report("integrity", DAMAGED, RESTORE, detail=wrong)
            else:
                self.condition.clear("integrity")

    def check_writing(self) -> None:
        """Go on if SQLite can store a change.

        Raises:
            StoreError: it cannot.
        """
        if self._files is None:
            return
        try:
            write_probe(self._files.path)
        except sqlite3.Error as error:
            raise self.failed(DBAPIError(None, None, error)) from error

    def failed(self, error: DBAPIError) -> StoreError:
        """Return the database's complaint in our words; damage that it has found counts from now on."""
        found = translated(error, self.where)
        if isinstance(found, StoreDamaged):
            self.condition.report("integrity", DAMAGED, RESTORE, detail=str(error.orig))
        return found

    def _use_again(self) -> None:
        """Use the files again, which are back or have changed, if their content can be read."""
        try:
            self.check_content()
        except StoreError as error:
            self.condition.report("file", "the store's file cannot be read", PUT_BACK, detail=error.what)
            return
        self.condition.clear("file")

    def _unusable(self, what: str, do: str) -> StoreUnusable:
        return StoreUnusable(
            f"{what} ({self.where})",
            means="the controller no longer uses it, so nothing is decided; jobs go on training",
            do=do,
        )
