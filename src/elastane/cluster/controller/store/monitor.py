"""A thread that checks the store periodically."""

import threading
import time
from collections.abc import Callable
from typing import Self

from elastane.cluster.controller.store.condition import NO_ANSWER
from elastane.cluster.controller.store.database import Store, read_change
from elastane.cluster.controller.store.failures import StoreBusy, StoreError, StoreFull, StoreUnusable

LOOK_S = 1.0
"""Interval between two looks at the files."""
PROBE_S = 10.0
"""Interval between two small writes."""
READ_ALL_S = 60.0
"""Interval between two complete reads of the database; longer if a read takes long."""
SHARE = 0.02
"""Largest share of the time that complete reads may take."""
OLDER = "the store lacks changes that it had: an older one was written over it"
RESTART = (
    "end the controller (`elastane down`), restore the newest store as docs/operating.md describes, and "
    "start it again"
)


class Monitor:
    """A context manager that checks a store. Its findings are in the condition of the store's soundness.

    Args:
        note: called periodically with the number of the store's last change.
    """

    def __init__(self, store: Store, note: Callable[[int], None]) -> None:
        self._store = store
        self._note = note
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        # Opening the store has just read all of it.
        self._read_all_at_s = time.monotonic() + READ_ALL_S
        self._probe_at_s = float("-inf")
        self._newest = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self.look()
            if self._over.wait(LOOK_S):
                return

    def look(self) -> None:
        """Make the checks that are due."""
        soundness, now_s = self._store.soundness, time.monotonic()
        try:
            soundness.check()
        except StoreUnusable:
            # Read a damaged store again: it may have been repaired in place.
            if not soundness.condition.has("integrity"):
                return
        if now_s >= self._read_all_at_s:
            self._read_all()
        if now_s >= self._probe_at_s:
            self._probe_at_s = now_s + PROBE_S
            self._probe()

    def _read_all(self) -> None:
        begin_s = time.monotonic()
        condition = self._store.soundness.condition
        try:
            self._store.soundness.check_content()
        except StoreError as error:
            condition.report("reading", "the store cannot be read", error.do, detail=error.what)
        end_s = time.monotonic()
        self._read_all_at_s = end_s + max(READ_ALL_S, (end_s - begin_s) / SHARE)

    def _probe(self) -> None:
        """Check that a small read and a small write succeed."""
        condition = self._store.soundness.condition
        try:
            with self._store.begin_read() as tx:
                seen = read_change(tx)
        except StoreUnusable:
            return
        except StoreError as error:
            condition.report("reading", NO_ANSWER, error.do, detail=error.what)
            return
        condition.clear("reading")
        if seen < self._newest:
            condition.report(
                "age", OLDER, RESTART, detail=f"it is at change {seen}, and {self._newest} was seen"
            )
            return
        self._newest = seen
        self._note(seen)
        try:
            self._store.write_probe()
        except StoreUnusable:
            return
        except StoreError as error:
            condition.report("writing", _summarize_error(error), error.do, detail=error.what)
            return
        condition.clear("writing")


def _summarize_error(error: StoreError) -> str:
    """Return why nothing can be stored, without a path."""
    match error:
        case StoreFull():
            return "the disk under the store is full"
        case StoreBusy():
            return "the store has been busy for too long"
        case _:
            return "the store accepts no changes"
