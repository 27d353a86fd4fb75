"""Run directories made by hand, correct or with one mistake."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from elastane.run.nouns.records import Digest, EventLine, LedgerLine, Samples
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import PastDivision, Pinned, RunRecord, RunSpec
from elastane.run.observability.coverage import SampleRules
from elastane.run.observability.run_files import Recorded
from elastane.run.protocol.sampling import (
    find_sample_index,
    find_step_samples,
    hash_sample,
    hash_stream_sample,
)
from tests.pinned import SMALL_RUN

PINNED = msgspec.structs.replace(
    SMALL_RUN,
    script_digest="ab" * 32,
    virtual_ranks=4,
    microbatch=2,
    dataset_length=20,
    steps=6,
    seed=7,
    parameters=100,
    blocks=3,
    layout_digest="cd" * 32,
    optimizer="AdamW(lr=0.001)",
    versions={"elastane": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "device": "cpu"},
)


def make_honest_line(step: int, pinned: Pinned = PINNED) -> LedgerLine:
    """Return the line that an exact run writes: two workers from step 3, a digest every second step."""
    place = find_step_samples(step, pinned.dataset_length, pinned.global_batch)
    total = sum(
        hash_sample(find_sample_index(position, pinned.dataset_length, pinned.seed, place.epoch))
        for position in range(place.start, place.stop)
    )
    loss = 2.0 / step
    return LedgerLine(
        step=step,
        generation=1 if step < 3 else 2,
        workers={0: ((0, 4),)} if step < 3 else {0: ((0, 2),), 1: ((2, 4),)},
        samples=Samples(place.epoch, place.start, place.stop, place.count, f"{total % 2**64:016x}"),
        loss=loss,
        loss_hex=loss.hex(),
        time=1000.0 + step,
        seconds={"deal": 0.01, "compute": 0.1, "reduce": 0.02, "apply": 0.03, "step": 0.2},
        digest=Digest("e" * 64, "f" * 64, ("a1", "a2", "a3"), ("b1", "b2", "b3")) if step % 2 == 0 else None,
    )


class RunMaker:
    """Makes runs in memory, and writes their files on request."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(
        self,
        *,
        name: str = "trial",
        steps: int = PINNED.steps,
        pinned: Pinned | None = PINNED,
        change: Callable[[LedgerLine], LedgerLine] = lambda line: line,
        events: tuple[EventLine, ...] = (EventLine(time=1007.0, kind="run.finished"),),
        divisions: tuple[PastDivision, ...] = (),
    ) -> Recorded:
        run_dir = RunDir(self.root / name)
        run_dir.root.mkdir(exist_ok=True)
        spec = RunSpec(name=name, script="train.py")
        return Recorded(
            run_dir=run_dir,
            record=RunRecord(spec=spec, pinned=pinned, created="2026-01-01T00:00:00Z", divisions=divisions),
            ledger=tuple(change(make_honest_line(step)) for step in range(1, steps + 1)),
            events=events,
            live=False,
        )

    def write(self, run: Recorded) -> RunDir:
        run.run_dir.run.write_bytes(msgspec.json.encode(run.record))
        for path, lines in ((run.run_dir.ledger, run.ledger), (run.run_dir.events, run.events)):
            path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        return run.run_dir


@pytest.fixture
def make_run(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path)


@pytest.fixture
def pinned() -> Pinned:
    return PINNED


@pytest.fixture
def rules() -> SampleRules:
    return SampleRules(find_sample_index, hash_sample, hash_stream_sample)
