"""Records of a run, as its coordinator writes them."""

import json
from pathlib import Path

import msgspec

from elastane.run.nouns.records import EventLine, LedgerLine, Samples
from elastane.run.nouns.spec import RunRecord, RunSpec

BEGAN_S = 1_799_999_000.0


def make_line(step: int, workers: int = 2, loss: float | None = None) -> LedgerLine:
    """Return the ledger line of a step of ``workers`` workers that share four virtual ranks."""
    each = 4 // workers
    return LedgerLine(
        step=step,
        generation=1,
        workers={worker: ((worker * each, (worker + 1) * each),) for worker in range(workers)},
        samples=Samples(epoch=0, start=step * 8 - 8, stop=step * 8, count=8, checksum="0"),
        loss=3.0 / step if loss is None else loss,
        loss_hex="0x0p+0",
        time=BEGAN_S + step,
        seconds={"step": 0.5, "compute": 0.4, "reduce": 0.05},
    )


def write_run(root: Path, steps: int = 40) -> None:
    """Write a run that grows from one worker to two, loses one and gets another."""
    (root / "logs").mkdir(parents=True)
    record = RunRecord(spec=RunSpec(name="train", script="/train.py"), created="2027-01-15T08:00:00Z")
    (root / "run.json").write_bytes(msgspec.json.encode(record))
    lines = [make_line(step, 1 if step < 10 else 2) for step in range(1, steps + 1)]
    (root / "ledger.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    events = [
        EventLine(time=BEGAN_S, kind="run.started", who="agent"),
        EventLine(time=BEGAN_S + 9, kind="worker.joined", who="worker 1", workers=(1,)),
        EventLine(time=BEGAN_S + 10, kind="generation.started", workers=(0, 1), pause_ms={0: 12.5}, step=10),
        EventLine(time=BEGAN_S + 20, kind="worker.died", who="worker 1", why="killed", workers=(1,)),
        EventLine(time=BEGAN_S + 30, kind="evaluation", detail={"loss": 8.0, "count": 8}, samples=8, step=30),
    ]
    (root / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    (root / "logs" / "worker-0.log").write_text("step 1\nstep 2\n")
    assert json.loads((root / "run.json").read_text())["spec"]["name"] == "train"
