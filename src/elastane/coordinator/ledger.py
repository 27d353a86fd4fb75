"""The ledger: one line per committed step, in order and without gaps."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from elastane.api.control import StepReport
from elastane.api.records import LedgerLine
from elastane.coordinator.append_file import AppendFile, OpenFile, open_copy_to_append, open_to_append
from elastane.observability.line_files import find_end_of_lines
from elastane.observability.run_files import decode_ledger_line

MOST_LEFT_BYTES = 1 << 22


class Ledger:
    """The ``ledger.jsonl`` of a run. Every member reports every step; the first report becomes the line.

    Args:
        path: the path of the file; writing continues after the last whole line in it.
        open_file: opens the file; see `elastane.coordinator.append_file.AppendFile`.
        write: writes like `os.write`.
        left: a descriptor of the file that an earlier coordinator on another machine may still write, if
            ``open_file`` has put a copy in its place. Lines that no worker reports here come from it.
    """

    def __init__(
        self,
        path: Path,
        open_file: OpenFile = open_to_append,
        write: Callable[[int, bytes], int] = os.write,
        *,
        left: int | None = None,
    ) -> None:
        self._file = AppendFile(path, open_file, write)
        self._early: dict[int, LedgerLine] = {}
        last = self._file.last_line
        self.last = None if last is None else decode_ledger_line(last)
        self._taken = 0 if self.last is None else self.last.step
        self._left, self._left_end = left, self._file.size

    @property
    def step(self) -> int:
        """The highest step that is on disk together with all earlier steps."""
        return self._taken - self._file.waiting

    def take(self, reports: Iterable[StepReport]) -> None:
        """Take reports in any order; repeated ones can only raise ``seconds``, until the line is written."""
        for report in reports:
            line = report.line
            if line.step <= self._taken:
                continue
            known = self._early.get(line.step)
            self._early[line.step] = line if known is None else _merge(known, line)

    def flush(self) -> OSError | None:
        """Write every step that follows the last one; return the error if the disk refuses one, else None."""
        if self._early and self._taken + 1 not in self._early:
            self._take_left_lines()
        while (line := self._early.pop(self._taken + 1, None)) is not None:
            self._file.append(msgspec.json.encode(line))
            self._taken, self.last = line.step, line
        return self._file.flush()

    def _take_left_lines(self) -> None:
        """Take the lines that the earlier coordinator has written, and acknowledged, since it was left."""
        if self._left is None:
            return
        size = os.fstat(self._left).st_size
        end = find_end_of_lines(self._left, min(size, self._left_end + MOST_LEFT_BYTES), self._left_end)
        for content in os.pread(self._left, end - self._left_end, self._left_end).splitlines():
            line = decode_ledger_line(content)
            if line.step > self._taken:
                self._early.setdefault(line.step, line)
        self._left_end = end

    def sync(self, step: int) -> bool:
        """Wait until every line up to this step survives a power failure; return False if one cannot."""
        return self.step >= step and self._file.sync() is None

    def close(self) -> None:
        self._file.close()


def copy_ledger(path: Path) -> Ledger:
    """Return a ledger that continues a copy under the same name; see `open_copy_to_append`.

    Raises:
        OSError: the file cannot be copied.
    """
    try:
        left = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Ledger(path)
    return Ledger(path, open_copy_to_append, left=left)


def _merge(one: LedgerLine, other: LedgerLine) -> LedgerLine:
    phases = one.seconds.keys() | other.seconds.keys()
    seconds = {phase: max(one.seconds.get(phase, 0.0), other.seconds.get(phase, 0.0)) for phase in phases}
    return msgspec.structs.replace(one, seconds=dict(sorted(seconds.items())))
