"""The source of rows: the records of a run, read while other processes write them."""

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from elastane.common.untrusted_data import Malformed
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.evaluations import KIND
from elastane.run.observability.run_files import decode_event_line, decode_ledger_line
from elastane.run.observability.tail import LONGEST_LINE_BYTES, Tail
from elastane.run.trackers.metric_rows import MetricRow, make_evaluation_row, make_step_row, merge_rows

AT_ONCE_BYTES = 1 << 20
EVALUATION, RESUMED = b'"kind":"evaluation"', b'"kind":"run.resumed"'


class RowSource(Protocol):
    """Yields rows in the order of their steps."""

    def read(self) -> list[MetricRow]:
        """Return the rows that have come since the last call; empty: there is none now."""

    def confirm(self) -> None:
        """Note that all rows that were read are recorded."""


class StepReader:
    """Reads the lines of a ledger that another process writes, and that a resume may replace.

    Line N is step N, so steps that are recorded already are skipped without being decoded.

    Args:
        report_broken: is called with the step of a line that cannot be read.
    """

    def __init__(self, run_dir: RunDir, first: int, report_broken: Callable[[int], None]) -> None:
        self._run_dir = run_dir
        self._first = first
        self._report_broken = report_broken
        self._inode = self._offset_bytes = 0
        self._torn = b""
        self.step = 0

    def read(self) -> list[MetricRow]:
        """Return the rows of lines that have been completed since the last call; at most a mebibyte of them.

        Raises:
            Malformed: the path does not lead to a regular file.
            OSError: it cannot be read.
        """
        rows: list[MetricRow] = []
        while not rows and (lines := self._read_lines()):
            for line in lines:
                self.step += 1
                if self.step >= self._first:
                    rows += self._decode(line)
        self._first = max(self._first, self.step)
        return rows

    def _decode(self, text: bytes) -> list[MetricRow]:
        try:
            line = decode_ledger_line(text)
            if line.step == self.step:
                return [make_step_row(line)]
        except (Malformed, ValueError, OverflowError):
            pass
        self._report_broken(self.step)
        return []

    def _read_lines(self) -> list[bytes]:
        try:
            with self._run_dir.files.open(self._run_dir.ledger) as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset_bytes:
                    # A resume has put a shorter ledger in its place.
                    self._inode, self._offset_bytes, self._torn, self.step = status.st_ino, 0, b"", 0
                file.seek(self._offset_bytes)
                fresh = file.read(AT_ONCE_BYTES)
                while fresh and b"\n" not in fresh and len(fresh) <= LONGEST_LINE_BYTES:
                    more = file.read(AT_ONCE_BYTES)
                    fresh += more
                    if not more:
                        break
        except FileNotFoundError:
            return []
        self._offset_bytes += len(fresh)
        *lines, self._torn = (self._torn + fresh).split(b"\n")
        if len(self._torn) > LONGEST_LINE_BYTES:
            # Elastane writes no such line. Its rest is broken, too.
            self._torn = b"?"
        return lines


class EvaluationReader:
    """Reads the evaluations of a run, each once, with its place among those after the same step."""

    def __init__(self, run_dir: RunDir) -> None:
        self._tail = Tail(run_dir.files, run_dir.events)
        self._keys: dict[int, list[str]] = {}

    def read(self) -> list[MetricRow]:
        """Return the rows of evaluations recorded since the last call.

        Raises:
            BadInput: the path does not lead to a regular file.
            OSError: it cannot be read.
        """
        rows = []
        while lines := self._tail.read_new_lines():
            for line in lines:
                if RESUMED in line:
                    # Another attempt numbers its rounds anew.
                    self._keys.clear()
                if EVALUATION in line and (row := self._decode(line)) is not None:
                    rows.append(row)
        return rows

    def _decode(self, line: bytes) -> MetricRow | None:
        try:
            event: EventLine = decode_event_line(line)
        except Malformed:
            return None
        if event.kind != KIND or event.step is None:
            return None
        keys = self._keys.setdefault(event.step, [])
        if event.key in keys:
            return None
        keys.append(event.key)
        return make_evaluation_row(event, len(keys))


class RecordedRows:
    """The rows of a run's ledger and evaluations.

    An evaluation waits for the line of its step, so that both come in one row if possible.

    Args:
        report_broken: is called with the step of a line that cannot be read.
    """

    def __init__(self, run_dir: RunDir, first: int, report_broken: Callable[[int], None]) -> None:
        self._steps = StepReader(run_dir, first, report_broken)
        self._evaluations = EvaluationReader(run_dir)
        self._waiting: list[MetricRow] = []

    def read(self) -> list[MetricRow]:
        # The line of a step is written after its evaluations have been reported.
        steps = self._steps.read()
        self._waiting += self._evaluations.read()
        ready = [row for row in self._waiting if row.step <= self._steps.step]
        self._waiting = [row for row in self._waiting if row.step > self._steps.step]
        return merge_rows((*steps, *ready))

    def confirm(self) -> None:
        """Do nothing, because the files stay."""


def find_last_step(rows: Sequence[MetricRow]) -> int:
    """Return the last step of some rows; 0: there is none."""
    return max((row.step for row in rows), default=0)
