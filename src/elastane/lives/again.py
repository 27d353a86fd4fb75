"""Another life without any checkpoint: all steps are made again, to the same bytes."""

import os
import time

import msgspec

from elastane.api.records import EventLine
from elastane.api.rundir import RunDir
from elastane.api.spec import Resumed, RunRecord, RunSpec
from elastane.lives.resuming import Say
from elastane.observability.run_files import decode_event_line, decode_ledger_line, read_lines, read_record


def from_the_beginning(run_dir: RunDir, spec: RunSpec, say: Say, *, why: str) -> RunRecord:
    """Make the run directory ready. The caller holds its lock.

    What the ledger loses is kept in ``ledger.lost.jsonl``.

    Args:
        run_dir: of the run.
        spec: for the new life.
        say: takes lines for a person.
        why: goes into the event.

    Raises:
        BadInput: a file is damaged. Nothing was changed.
        OSError: one cannot be written.
    """
    record = read_record(run_dir)
    events = read_lines(run_dir.events, decode_event_line, torn_tail=True)
    lost = len(read_lines(run_dir.ledger, decode_ledger_line, torn_tail=True))
    times = record.resumed.times + 1 if record.resumed is not None else 1
    record = msgspec.structs.replace(
        record,
        spec=spec,
        resumed=Resumed(
            checkpoint="",
            step=0,
            times=times,
            first_worker=1 + max((worker for event in events for worker in event.workers), default=-1),
            first_term=1 + sum(event.kind == "coordinator.started" for event in events),
        ),
    )
    if lost:
        lines = run_dir.ledger.read_bytes().split(b"\n")[:lost]
        _append(run_dir.lost_ledger, b"\n".join(lines) + b"\n")
        run_dir.ledger.write_bytes(b"")
    beside = run_dir.run.with_suffix(".json.new")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    beside.replace(run_dir.run)
    event = EventLine(
        time=time.time(),
        kind="run.resumed",
        who="elastane",
        why=f"{why}: from the beginning, for no checkpoint was finished; {lost} steps are made again",
        step=0,
        detail={"step": 0, "lost_steps": lost, "times": times},
    )
    if run_dir.events.exists():
        with run_dir.events.open("r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
    _append(run_dir.events, msgspec.json.encode(event) + b"\n")
    say(f"begins again; {lost} steps are made again")
    return record


def _append(path: "os.PathLike[str]", text: bytes) -> None:
    with open(path, "ab") as file:  # noqa: PTH123 - any path
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
