"""The ledger: one line per committed step, in order, without gaps, each step once."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from elastane.api.control import StepReport
from elastane.api.records import LedgerLine
from elastane.coordinator.append_file import AppendFile, OpenFile, open_to_append
from elastane.observability.run_files import decode_ledger_line


class Ledger:
    """``ledger.jsonl`` of a run. Every member reports every step; the first report of a step is its line.

    Args:
        path: the path of the file; writing continues after the last whole line in it.
        open_file: see `elastane.coordinator.append_file.AppendFile`.
        write: likewise.
    """

    def __init__(
        self,
        path: Path,
        open_file: OpenFile = open_to_append,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self._file = AppendFile(path, open_file, write)
        self._early: dict[int, LedgerLine] = {}
        last = self._file.last_line
        self.last = None if last is None else decode_ledger_line(last)
        self._taken = 0 if self.last is None else self.last.step

    @property
    def step(self) -> int:
        """The highest step that is on disk together with all before it."""
        return self._taken - self._file.waiting

    def take(self, reports: Iterable[StepReport]) -> None:
        """Takes reports in any order; repeated ones only lengthen ``seconds`` until the line is written."""
        for report in reports:
            line = report.line
            if line.step <= self._taken:
                continue
            known = self._early.get(line.step)
            self._early[line.step] = line if known is None else _slowest(known, line)

    def flush(self) -> OSError | None:
        """Writes every step that follows the last one; returns why it could not, None when it could."""
        while (line := self._early.pop(self._taken + 1, None)) is not None:
            self._file.append(msgspec.json.encode(line))
            self._taken, self.last = line.step, line
        return self._file.flush()

    def keep(self, step: int) -> bool:
        """Whether every line up to this step is in the file, and stays there if the power goes."""
        return self.step >= step and self._file.sync() is None

    def close(self) -> None:
        self._file.close()


def _slowest(one: LedgerLine, other: LedgerLine) -> LedgerLine:
    phases = one.seconds.keys() | other.seconds.keys()
    seconds = {phase: max(one.seconds.get(phase, 0.0), other.seconds.get(phase, 0.0)) for phase in phases}
    return msgspec.structs.replace(one, seconds=dict(sorted(seconds.items())))
