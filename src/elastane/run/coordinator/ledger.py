"""The ledger: one line per committed step, in order and without gaps."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from elastane.run.coordinator.append_file import AppendFile, OpenFile, open_to_append
from elastane.run.nouns.control import StepReport
from elastane.run.nouns.records import LedgerLine
from elastane.run.observability.run_files import decode_ledger_line


class Ledger:
    """The ``ledger.jsonl`` of a run. Every member reports every step; the first report becomes the line.

    Args:
        path: the path of the file; writing continues after the last whole line in it.
        open_file: opens the file; see `elastane.run.coordinator.append_file.AppendFile`.
        write: writes like `os.write`.

    Attributes:
        file: the file itself.
    """

    def __init__(
        self,
        path: Path,
        open_file: OpenFile = open_to_append,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self.file = AppendFile(path, open_file, write)
        self._early: dict[int, LedgerLine] = {}
        last = self.file.last_line
        self.last = None if last is None else decode_ledger_line(last)
        self._taken = 0 if self.last is None else self.last.step

    @property
    def step(self) -> int:
        """The highest step that is on disk together with all earlier steps."""
        return self._taken - self.file.waiting

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
        while (line := self._early.pop(self._taken + 1, None)) is not None:
            self.file.append(msgspec.json.encode(line))
            self._taken, self.last = line.step, line
        return self.file.flush()

    def sync(self, step: int) -> bool:
        """Wait until every line up to this step survives a power failure; return False if one cannot."""
        return self.step >= step and self.file.sync() is None

    def close(self) -> None:
        self.file.close()


def _merge(one: LedgerLine, other: LedgerLine) -> LedgerLine:
    phases = one.seconds.keys() | other.seconds.keys()
    seconds = {phase: max(one.seconds.get(phase, 0.0), other.seconds.get(phase, 0.0)) for phase in phases}
    return msgspec.structs.replace(one, seconds=dict(sorted(seconds.items())))
