"""The records of a run that a page shows, read on from the last byte, of a file or over the API."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Generic, TypeAlias, TypeVar

from elastane.cluster.nouns.rest import ReadRecord
from elastane.common.untrusted_data import Malformed
from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.observability.run_files import decode_event_line, decode_ledger_line
from elastane.run.observability.tail import LONGEST_LINE_BYTES

T = TypeVar("T")
ReadPart: TypeAlias = Callable[[ReadRecord, int], tuple[bytes, int]]
"""Returns a part of a record from an offset on, and the offset after it: a lower one if it is shorter."""

MOST_LINES = 20_000
"""The newest lines of a record that are kept; the report of the run shows all."""
MOST_PARTS = 16
"""Parts of a record that one look reads; the next look reads on."""


class RecordTail(Generic[T]):
    """The lines of a record of a run, read on from where the last reading ended.

    Attributes:
        lines: the newest `MOST_LINES`.
        unreadable: how many lines could not be read; each costs only itself.
        dropped: how many older lines are not kept.
    """

    def __init__(self, record: ReadRecord, decode: Callable[[bytes], T]) -> None:
        self.record: ReadRecord = record
        self._decode = decode
        self.forget()

    def forget(self) -> None:
        """Begin at the first byte again."""
        self.lines: list[T] = []
        self.unreadable = self.dropped = 0
        self._offset, self._torn = 0, b""

    def read(self, read_part: ReadPart) -> bool:
        """Read what was appended; return whether there was something."""
        changed = False
        for _ in range(MOST_PARTS):
            data, following = read_part(self.record, self._offset)
            if following < self._offset:
                # An attempt that continues from a checkpoint begins with a shorter record.
                self.forget()
                continue
            if not data:
                break
            changed = True
            self._offset = following
            self._take(data)
        return changed

    def _take(self, data: bytes) -> None:
        *whole, self._torn = (self._torn + data).split(b"\n")
        if len(self._torn) > LONGEST_LINE_BYTES:
            self._torn = b""
        for line in whole:
            try:
                self.lines.append(self._decode(line))
            except Malformed:
                self.unreadable += 1
        if len(self.lines) > MOST_LINES:
            self.dropped += len(self.lines) - MOST_LINES
            del self.lines[:-MOST_LINES]


class RunRecords:
    """The steps and the changes of one run."""

    def __init__(self) -> None:
        self.ledger = RecordTail[LedgerLine]("ledger.jsonl", decode_ledger_line)
        self.events = RecordTail[EventLine]("events.jsonl", decode_event_line)

    def read(self, read_part: ReadPart) -> bool:
        """Read what was appended; return whether there was something.

        Raises:
            The errors of ``read_part``.
        """
        found = [self.ledger.read(read_part), self.events.read(read_part)]
        if any(after.step <= before.step for before, after in pairwise(self.ledger.lines)):
            # Between two looks an attempt has cut the ledger, and has written as much again.
            self.ledger.forget()
            self.ledger.read(read_part)
            self.ledger.lines = keep_last_of_each_step(self.ledger.lines)
        return any(found)


def keep_last_of_each_step(lines: Sequence[LedgerLine]) -> list[LedgerLine]:
    """Return the lines in the order of their steps; a step that was made again replaces all from it on."""
    kept: list[LedgerLine] = []
    for line in lines:
        while kept and kept[-1].step >= line.step:
            kept.pop()
        kept.append(line)
    return kept
