"""The page of one run, without a controller: its records are read from its directory."""

import hmac
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from elastane.cluster.dashboard.drawn_pages import DrawnPages
from elastane.cluster.dashboard.rendering import PageContent
from elastane.cluster.dashboard.run_pictures import RunPictures
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Malformed
from elastane.run.connections.run_lock import is_live
from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.report import list_tiles
from elastane.run.observability.run_files import (
    Recorded,
    decode_event_line,
    decode_ledger_line,
    read_record,
)
from elastane.run.observability.tail import Tail

T = TypeVar("T")

EACH_S = 0.9


class RunFeed:
    """The records of one run, read on while pages show them.

    Attributes:
        version: grows with every change.
        refusal: always empty: the key of a run stays valid.
        is_over: always False.
    """

    refusal = ""
    is_over = False

    def __init__(self, root: str) -> None:
        self.run_dir = RunDir(Path(root))
        self.version = 0
        self.drawn = DrawnPages()
        self.pictures = RunPictures()
        self._lock = threading.Lock()
        self._looked_s = -1e9
        self._ledger = Tail(self.run_dir.files, self.run_dir.ledger)
        self._events = Tail(self.run_dir.files, self.run_dir.events)
        self._lines: list[LedgerLine] = []
        self._changes: list[EventLine] = []

    def touch(self) -> None:
        """Do nothing: reading needs no connection that could be closed."""

    def look(self) -> Recorded:
        """Return the records of the run, read less than a second ago.

        Raises:
            BadInput: the run directory cannot be read.
        """
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._looked_s > EACH_S:
                self._looked_s = now_s
                self._read_on()
            return Recorded(
                run_dir=self.run_dir,
                record=read_record(self.run_dir),
                ledger=tuple(self._lines),
                events=tuple(self._changes),
                live=is_live(self.run_dir),
            )

    def _read_on(self) -> None:
        try:
            for step in _decode_lines(self._ledger, decode_ledger_line):
                if self._lines and step.step <= self._lines[-1].step:
                    # An attempt continues from a checkpoint, and makes the later steps again.
                    self._lines = [known for known in self._lines if known.step < step.step]
                self._lines.append(step)
            self._changes += _decode_lines(self._events, decode_event_line)
        except OSError as error:
            raise BadInput(f"the records of {self.run_dir.root} cannot be read: {error}") from error
        self.version += 1


def _decode_lines(tail: Tail, decode: Callable[[bytes], T]) -> Iterator[T]:
    """Yield what was appended to a record; a line that cannot be read costs only itself."""
    for line in tail.read_new_lines():
        with suppress(Malformed):
            yield decode(line)


class RunFeeds:
    """The feed of the run, for those that have the key."""

    def __init__(self, root: str, key: str) -> None:
        self._key = key
        self._feed = RunFeed(root)

    def find(self, token: str) -> RunFeed:
        """Return the feed of the run.

        Raises:
            BadInput: the key is wrong.
        """
        if not hmac.compare_digest(token.encode(), self._key.encode()):
            raise BadInput("this key is not known here", do="use the address that elastane dashboard printed")
        return self._feed

    def close(self) -> None:
        """Do nothing: there are no connections."""


def build_run_page(feed: RunFeed) -> PageContent:
    """Return the page of the run.

    Raises:
        BadInput, NoSuchRun: the run directory cannot be read.
    """
    run = feed.look()
    drawn = feed.pictures.draw(run)
    return PageContent(
        title=run.record.spec.name,
        template="run.html",
        parts=("run_head", "run_chart", "run_workers", "run_history", "run_tables"),
        facts={"run": run, "now_s": time.time(), "tiles": list_tiles(drawn["run_facts"]), **drawn},
    )
