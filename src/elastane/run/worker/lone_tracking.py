"""Trackers of a process that trains alone: fed by threads of the process itself, without a run directory."""

import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.nouns.spec import Pinned, RunRecord, RunSpec
from elastane.run.nouns.trackers import Tracker
from elastane.run.trackers.feeding import Feed, Subject, wait_for_feeds
from elastane.run.trackers.metric_rows import MetricRow, make_evaluation_row, make_step_row, merge_rows
from elastane.run.trackers.parameters import list_parameters
from elastane.run.trackers.tracker import Outcome, TrackedRun, make_store

GRACE_S = 30.0
MOST_ROWS = 100_000
"""The most rows that wait for one tracker: some tens of megabytes."""


class RowQueue:
    """The rows of this process that one tracker does not have yet; two threads use it.

    A tracker that takes nothing for long loses the oldest rows, so that memory stays bounded.

    Args:
        say: takes a line for the user when rows are dropped; once, until the tracker takes rows again.
    """

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._name = name
        self._say = say
        self._lock = threading.Lock()
        self._rows: list[MetricRow] = []
        self._given = 0
        self._dropping = False
        self.dropped = 0

    def put(self, rows: Iterable[MetricRow]) -> None:
        """Add rows; beyond `MOST_ROWS`, drop the oldest sixteenth."""
        with self._lock:
            self._rows += rows
            if len(self._rows) <= MOST_ROWS:
                return
            excess = len(self._rows) - MOST_ROWS + MOST_ROWS // 16
            last = self._rows[excess - 1].step
            del self._rows[:excess]
            self._given = max(0, self._given - excess)
            self.dropped += excess
            first_time, self._dropping = not self._dropping, True
        if first_time:
            self._say(
                f"{self._name} has taken no metrics for {MOST_ROWS:,} steps: those up to step {last} are "
                "dropped, and more until it works again; training goes on"
            )

    def rewind(self) -> "RowQueue":
        """Return this queue, which gives again what was not confirmed."""
        with self._lock:
            self._given = 0
        return self

    def read(self) -> list[MetricRow]:
        with self._lock:
            fresh = self._rows[self._given :]
            self._given = len(self._rows)
        return merge_rows(fresh)

    def confirm(self) -> None:
        with self._lock:
            del self._rows[: self._given]
            self._given = 0
            self._dropping = False


class LoneTracking:
    """Feeds trackers with the steps and evaluations of a process that trains alone.

    Args:
        is_complete: returns whether all steps are made.
    """

    def __init__(self, names: Iterable[Tracker], is_complete: Callable[[], bool]) -> None:
        self._is_complete = is_complete
        self._ending = threading.Event()
        self._run: TrackedRun | None = None
        self._evaluations: list[EventLine] = []
        self._queues: list[RowQueue] = []
        self._feeds: list[Feed] = []
        for name in names:
            queue = RowQueue(name, _print_line)
            subject = Subject(self._describe, lambda _, queue=queue: queue.rewind(), self._find_outcome)  # type: ignore[misc]
            feed = Feed(name, make_store(name), subject, self._ending, _print_line)
            self._queues.append(queue)
            self._feeds.append(feed)
            threading.Thread(target=feed.run, name=f"elastane-{name}", daemon=True).start()
        # The interpreter waits for this thread, and ends the others.
        threading.Thread(target=self._end_with_script, name="elastane-trackers", daemon=False).start()

    def begin(self, spec: RunSpec, pinned: Pinned) -> None:
        """Begin with a run of its own in every tracker: this process goes on with no earlier one."""
        script, *args = sys.argv
        name = f"{Path(script).stem or 'python'}-{time.strftime('%Y%m%d-%H%M%S')}"
        spec = msgspec.structs.replace(spec, name=name, script=script, args=tuple(args))
        here = Path.cwd()
        self._run = TrackedRun(
            id=secrets.token_hex(8),
            name=name,
            tensorboard=here / "tensorboard" / name,
            mlflow=here / "mlflow",
            wandb=here / "wandb",
            parameters=list_parameters(RunRecord(spec=spec, pinned=pinned, created="")),
        )

    def add_step(self, line: LedgerLine) -> None:
        """Add a step after the script has recorded all of its values."""
        self._put([make_step_row(line)])

    def add_evaluation(self, event: EventLine) -> None:
        """Add an evaluation, in the order of the evaluations after its step."""
        self._evaluations = [known for known in self._evaluations if known.step == event.step]
        self._evaluations.append(event)
        self._put([make_evaluation_row(event, len(self._evaluations))])

    def _put(self, rows: list[MetricRow]) -> None:
        for queue in self._queues:
            queue.put(rows)

    def _describe(self) -> TrackedRun | None:
        if self._run is not None:
            self._run.tensorboard.parent.mkdir(exist_ok=True)
        return self._run

    def _find_outcome(self) -> Outcome:
        return "finished" if self._is_complete() else "failed"

    def _end_with_script(self) -> None:
        threading.main_thread().join()
        self._ending.set()
        for feed in wait_for_feeds(self._feeds, GRACE_S):
            _print_line(f"{feed.name} has nothing after step {feed.step}: {feed.error}")
        for feed, queue in zip(self._feeds, self._queues, strict=True):
            if queue.dropped:
                _print_line(f"{feed.name} lacks {queue.dropped:,} steps, which were dropped")


def _print_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")
