"""Runs with made-up records, and readers of what trackers have, other than ours where there is one."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from elastane.run.nouns.records import EventLine, LedgerLine, Samples
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord, RunSpec
from elastane.run.trackers.row_sources import RecordedRows
from elastane.run.trackers.tracker import TrackedRun
from tests.run.unit.observability.conftest import PINNED

from .readers import Series


def make_line(step: int, **changes: object) -> LedgerLine:
    loss = 1 / step
    line = LedgerLine(
        step=step,
        generation=1,
        workers={0: ((0, 2),), 1: ((2, 4),)},
        samples=Samples(epoch=0, start=0, stop=16, count=16, checksum="0"),
        loss=loss,
        loss_hex=loss.hex(),
        time=1000.0 + step,
        seconds={"step": 0.5},
        learning_rates=(0.1,),
        logged={"accuracy": step / 100},
    )
    return msgspec.structs.replace(line, **changes)


def make_evaluation(step: int, key: str, **sums: float) -> EventLine:
    return EventLine(time=2000.0 + step, kind="evaluation", step=step, key=key, detail=sums, samples=10)


class RecordedRun:
    """A run directory whose ledger and events a test writes."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.run_dir = RunDir(root)
        self.run_dir.logs.mkdir()
        self.broken: list[int] = []
        record = RunRecord(spec=RunSpec(name="made-up", script="t.py"), pinned=PINNED, created="now")
        self.run_dir.run.write_bytes(msgspec.json.encode(record))
        self.tracked = TrackedRun(
            id="0123456789abcdef",
            name="made-up",
            tensorboard=self.run_dir.trackers.tensorboard,
            mlflow=self.run_dir.trackers.mlflow,
            wandb=self.run_dir.trackers.wandb,
            parameters={"seed": "0", "script": "t.py"},
        )

    def add(self, *lines: LedgerLine | EventLine | bytes) -> None:
        for line in lines:
            path = self.run_dir.events if isinstance(line, EventLine) else self.run_dir.ledger
            with path.open("ab") as file:
                file.write(line if isinstance(line, bytes) else msgspec.json.encode(line) + b"\n")

    def cut(self, step: int) -> None:
        """Resume from a step, as `elastane.run.attempts.resumption` does."""
        lines = self.run_dir.ledger.read_bytes().splitlines(keepends=True)
        partial = self.run_dir.root / "partial"
        partial.write_bytes(b"".join(lines[:step]))
        partial.replace(self.run_dir.ledger)
        self.add(EventLine(time=3000.0, kind="run.resumed", step=step))

    def open_source(self, first: int = 1) -> RecordedRows:
        return RecordedRows(self.run_dir, first, self.broken.append)


@pytest.fixture
def recorded(tmp_path: Path) -> RecordedRun:
    return RecordedRun(tmp_path / "run")


def collect(rows) -> Series:
    """Return the points of each name."""
    found = defaultdict(list)
    for row in rows:
        for name, value in row.values.items():
            found[name].append((row.step, value))
    return dict(found)


@pytest.fixture
def expected() -> Callable[[int], Series]:
    """Return a function that gives the points of a run of some steps."""

    def make(steps: int) -> Series:
        numbers = range(1, steps + 1)
        return {
            "train/loss": [(step, 1 / step) for step in numbers],
            "train/workers": [(step, 2.0) for step in numbers],
            "train/learning_rate": [(step, 0.1) for step in numbers],
            "train/samples_per_s": [(step, 32.0) for step in numbers],
            "accuracy": [(step, step / 100) for step in numbers],
        }

    return make
