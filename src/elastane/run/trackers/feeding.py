"""Feeding one tracker: what it lacks, again after every interruption, until the run is over."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastane.common.errors import StorageError
from elastane.common.safe_text import fold_text
from elastane.common.url_credentials import hide_credentials
from elastane.run.trackers.metric_rows import LOSS, select_missing
from elastane.run.trackers.row_sources import RowSource, find_last_step
from elastane.run.trackers.tracker import MetricStore, Outcome, TrackedRun

POLL_S = 0.5
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 30.0
REFUSED_GRACE_S = 4.0
CHECK_S = 0.05
LONGEST_ERROR = 300


@dataclass(frozen=True, slots=True)
class Subject:
    """The run that trackers are fed with.

    Args:
        describe: returns the run; None: its facts are not known yet.
        open_source: returns the rows from a step on.
        find_outcome: returns how the run ended.
    """

    describe: Callable[[], TrackedRun | None]
    open_source: Callable[[int], RowSource]
    find_outcome: Callable[[], Outcome]


class Feed:
    """Feeds one tracker in a thread of its own, so that one that hangs delays no other.

    Args:
        ending: is set when no more rows will come; then the feed ends after the last row.
        say: takes lines for the user; a line about a failure comes once, until the tracker works again.

    Attributes:
        step: the last step that the tracker has.
        done: the tracker has everything.
    """

    def __init__(
        self,
        name: str,
        store: MetricStore,
        subject: Subject,
        ending: threading.Event,
        say: Callable[[str], None],
    ) -> None:
        self.name = name
        self._store = store
        self._subject = subject
        self._ending = ending
        self._say = say
        self._failing = self._shown = False
        self.error = ""
        self.step = 0
        self.done = False

    def run(self) -> None:
        """Feed the tracker to the end of the run."""
        pause_s = FIRST_RETRY_S
        while not self.done:
            before = self.step
            try:
                self.done = self._feed()
            except Exception as error:  # noqa: BLE001 - code of another library: its failure becomes a state
                self._fail(error)
            if not self.done:
                pause_s = FIRST_RETRY_S if self.step > before else min(2 * pause_s, LONGEST_RETRY_S)
                if self._ending.wait(pause_s):
                    time.sleep(FIRST_RETRY_S)

    def _feed(self) -> bool:
        """Feed the tracker to the end; return False if the run ended before its facts were known."""
        run = self._subject.describe()
        while run is None:
            if self._ending.wait(POLL_S) and (run := self._subject.describe()) is None:
                return True
            run = self._subject.describe()
        recorded = self._store.open(run)
        if not self._shown:
            self._shown = True
            self._say(f"{self.name}: {hide_credentials(self._store.describe_view())}")
        # The row of the last step may be incomplete.
        source = self._subject.open_source(max(1, recorded.get(LOSS, 0)))
        while True:
            ending = self._ending.is_set()
            rows = source.read()
            missing, will_have = select_missing(rows, recorded)
            if missing:
                self._store.write(missing)
            recorded = will_have
            if rows:
                self.step = max(self.step, find_last_step(rows))
                source.confirm()
            self._recover()
            if not rows and ending:
                break
            if not rows:
                self._ending.wait(POLL_S)
        self._store.close(self._subject.find_outcome(), self.step)
        self._check(recorded)
        return True

    def _check(self, expected: dict[str, int]) -> None:
        """Check that the store really has what it was given.

        Raises:
            StorageError: it has less.
        """
        found = self._store.read_last_steps()
        lost = [name for name, step in expected.items() if found.get(name, -1) < step]
        if lost:
            raise StorageError(f"it has lost {lost[0]} of step {expected[lost[0]]}")

    def _fail(self, error: Exception) -> None:
        self.error = describe_tracker_error(error)
        if not self._failing:
            self._failing = True
            self._say(f"{self.name} fails: {self.error}; training goes on, and {self.name} is tried again")

    def _recover(self) -> None:
        if self._failing:
            self._failing, self.error = False, ""
            self._say(f"{self.name} works again; it gets what it has missed")


def wait_for_feeds(feeds: Sequence[Feed], grace_s: float) -> list[Feed]:
    """Wait until all feeds are done after the end of a run; return those that are not.

    Args:
        grace_s: the longest wait, in seconds. It is shorter if the tracker refuses everything.
    """
    began = time.monotonic()
    while waiting := [feed for feed in feeds if not feed.done]:
        waited_s = time.monotonic() - began
        if waited_s > (min(grace_s, REFUSED_GRACE_S) if all(feed.error for feed in waiting) else grace_s):
            break
        time.sleep(CHECK_S)
    return waiting


def describe_tracker_error(error: Exception) -> str:
    """Return an error of another library in one line, without the password of an address."""
    text = fold_text(hide_credentials(str(error)), LONGEST_ERROR)
    return text or type(error).__name__
