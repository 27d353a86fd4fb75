"""Preparation of another attempt in a run directory, from the newest valid checkpoint or the start."""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from elastane.common.atomic_file import replace_file
from elastane.common.errors import BadInput, Damaged, ElastaneError, FileDamage, NoSuchFile
from elastane.run.attempts.beginnings import open_checkpoints
from elastane.run.attempts.software import read_software
from elastane.run.machines.claims.history import number_next_term
from elastane.run.machines.claims.urls import open_claims
from elastane.run.nouns.checkpoints import Manifest
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import PastDivision, Resumed, RunRecord, RunSpec
from elastane.run.observability.facts import find_finish, has_finished
from elastane.run.observability.line_files import append_line
from elastane.run.observability.run_files import (
    read_events,
    read_last_step,
    read_ledger,
    read_record,
    write_record,
)

Say = Callable[[str], None]

CLAIMS_S = 1.0
"""How long the claim list of a run may take to answer."""
STATE_LOST = "every copy of the state was lost"
"""The reason for an attempt that no user has requested."""
BY_COMMAND = "elastane run"


def prepare_resumption(
    run_dir: RunDir,
    spec: RunSpec,
    say: Say,
    *,
    begun_by: str = BY_COMMAND,
    why: str = "requested by the user",
    adapted: bool = False,
) -> RunRecord:
    """Prepare the run directory for another attempt. The caller holds its lock.

    The attempt begins with the newest valid checkpoint, or from the start if the run has not saved any yet.
    The ledger is cut there. The lines after it move to ``ledger.lost.jsonl``; their steps are made again, to
    the same bytes.

    Args:
        spec: for the new attempt; the options that decide about the trained bytes must be unchanged.
        begun_by: the subject of the event.
        adapted: the user has accepted that the script or the software has changed.

    Raises:
        BadInput: there is nothing to resume, or the script has changed. Nothing was changed.
        NoSuchFile: a checkpoint that was saved is not there. Nothing was changed.
        Damaged: there are complete checkpoints, and none is valid. Nothing was changed.
        StorageError: the storage of the checkpoints does not answer. Nothing was changed.
    """
    record, events = read_record(run_dir), read_events(run_dir, torn_tail=True)
    if has_finished(events):
        raise BadInput(
            f"the run in {run_dir.root} has finished",
            means=f"{find_finish(events)}; a finished run is not resumed",
            do="export its model (elastane export), or train on from its state (elastane run --from RUN)",
        )
    if not adapted:
        _check_unchanged(record, spec)
        _check_processes(record, spec)
    lines = len(read_ledger(run_dir, torn_tail=True))
    try:
        manifest = find_newest_valid(run_dir, spec, say, within=record.began_at.step + lines)
    except NoSuchFile:
        # A run with an origin begins with a checkpoint.
        if record.origin is not None or any(event.kind == "checkpoint.saved" for event in events):
            raise
        return prepare_restart(run_dir, spec, say, begun_by=begun_by, why=why, adapted=adapted)
    numbers = _compute_next_numbers(run_dir, record, events)
    accepted = adapted or _follows_adapted(record, manifest.name)
    beginning = Resumed(manifest.name, manifest.step, *numbers, adapted=accepted)
    if spec.processes != record.spec.processes:
        why += f", with {spec.processes} processes per worker in place of {record.spec.processes}"
    record = _build_record(record, spec, beginning, adapted=adapted)
    lost = _record_begin(run_dir, record, begun_by, f"{why}: from {manifest.name}", lines)
    say(f"resuming from {manifest.name}; {lost} later steps are made again")
    return record


def prepare_restart(
    run_dir: RunDir,
    spec: RunSpec,
    say: Say,
    *,
    begun_by: str = BY_COMMAND,
    why: str,
    adapted: bool = False,
) -> RunRecord:
    """Prepare the run directory for another attempt from the start. The caller holds its lock.

    All steps are made again, to the same bytes; the lines that the ledger loses are kept as after
    `prepare_resumption`.

    Args:
        run_dir: of the run; it has events.
        begun_by: the subject of the event.
        adapted: the user has accepted that the script or the software has changed.

    Raises:
        BadInput: a file is damaged. Nothing was changed.
    """
    record, events = read_record(run_dir), read_events(run_dir, torn_tail=True)
    lines = len(read_ledger(run_dir, torn_tail=True))
    numbers = _compute_next_numbers(run_dir, record, events)
    beginning = Resumed("", 0, *numbers, adapted=adapted or _follows_adapted(record, ""))
    record = _build_record(record, spec, beginning, adapted=adapted)
    reason = f"{why}: from the beginning, because no checkpoint was complete"
    lost = _record_begin(run_dir, record, begun_by, reason, lines)
    say(f"starting again from the beginning; {lost} steps are made again")
    return record


def prepare_rerun(run_dir: RunDir, spec: RunSpec, *, why: str) -> RunRecord:
    """Prepare the run directory for another attempt of an unmodified script, which has its own snapshots.

    The caller holds its lock.

    Args:
        run_dir: of the run; it has events.

    Raises:
        BadInput: the script has finished, or a file is damaged. Nothing was changed.
    """
    record, events = read_record(run_dir), read_events(run_dir, torn_tail=True)
    if has_finished(events):
        raise BadInput(
            f"the run in {run_dir.root} has finished",
            means="every process of its script has ended with exit code 0",
            do="start a new run (elastane run --contract torchrun)",
        )
    times, worker, term = _compute_next_numbers(run_dir, record, events)
    record = msgspec.structs.replace(record, spec=spec, resumed=Resumed("", 0, times, worker, term))
    write_record(run_dir, record)
    reason = f"{why}: the script continues from its own snapshot"
    event = EventLine(time=time.time(), kind="run.resumed", who=BY_COMMAND, why=reason)
    append_line(run_dir.events, msgspec.json.encode(event))
    return record


def _follows_adapted(record: RunRecord, checkpoint: str) -> bool:
    """Tell whether the last attempt was an adapted one that began like this one and has saved nothing."""
    return record.resumed is not None and record.resumed.adapted and record.resumed.checkpoint == checkpoint


def _compute_next_numbers(
    run_dir: RunDir, record: RunRecord, events: Sequence[EventLine]
) -> tuple[int, int, int]:
    """Return how often the run has been resumed, and the numbers of its next worker and coordinator."""
    times = record.resumed.times + 1 if record.resumed is not None else 1
    first_worker = 1 + max((worker for event in events for worker in event.workers), default=-1)
    first_term = 1 + sum(event.kind == "coordinator.started" for event in events)
    with suppress(ElastaneError):
        # A coordinator may have claimed its term and died before its event.
        held = open_claims(run_dir, record.spec, wait_s=CLAIMS_S).read()
        first_term = number_next_term(held, first_term)
    return times, first_worker, first_term


def _record_begin(run_dir: RunDir, record: RunRecord, begun_by: str, why: str, lines: int) -> int:
    """Record that an attempt begins; return how many of the ledger's ``lines`` are made again."""
    resumed = record.resumed
    assert resumed is not None, "the caller has set it"
    now, last_record_s = time.time(), _find_last_timestamp(run_dir)
    lost = _cut_ledger(run_dir, max(0, resumed.step - record.began_at.step), lines)
    # No two attempts may have the same number, even after a power cut.
    write_record(run_dir, record)
    event = EventLine(
        time=now,
        kind="run.resumed",
        who=begun_by,
        why=f"{why}, {lost} steps are made again",
        step=resumed.step,
        detail={
            "name": resumed.checkpoint,
            "step": resumed.step,
            "lost_steps": lost,
            "times": resumed.times,
            "away_s": round(now - last_record_s, 3),
            **({"adapted": 1} if resumed.adapted else {}),
        },
    )
    append_line(run_dir.events, msgspec.json.encode(event))
    return lost


def find_newest_valid(run_dir: RunDir, spec: RunSpec, say: Say, *, within: int | None = None) -> Manifest:
    """Return the newest valid checkpoint, with all bytes as they were written.

    Args:
        within: the last step in the ledger; later checkpoints do not count. None: all checkpoints count.

    Raises:
        BadInput: the run saves no checkpoints.
        NoSuchFile: there is no complete one.
        Damaged: there are complete ones, and none is valid.
        StorageError: the storage does not answer.
    """
    if spec.checkpoints is None and read_record(run_dir).origin is None:
        raise BadInput("the run was started with --checkpoint-every never", means="it has no checkpoint")
    catalog = open_checkpoints(run_dir, spec.checkpoints)

    def check(manifest: Manifest) -> None:
        damages: tuple[FileDamage, ...]
        if within is not None and manifest.step > within:
            # Lines of the ledger were removed, or the run went back to an older checkpoint before.
            damages = (FileDamage(run_dir.ledger.name, f"ends at step {within}, before this checkpoint"),)
        else:
            damages = catalog.verify(manifest.name)
        if damages:
            raise Damaged(manifest.name, damages)

    start_s = time.perf_counter()
    _, manifest, skipped = catalog.restore_newest(check)
    seconds = time.perf_counter() - start_s
    for damaged in skipped:
        say(f"skipping checkpoint {damaged.checkpoint}: " + "; ".join(map(str, damaged.damages)))
    say(f"checkpoint {manifest.name} is valid: {manifest.bytes / 1e6:.1f} MB verified in {seconds:.2f} s")
    return manifest


def _check_unchanged(record: RunRecord, spec: RunSpec) -> None:
    """Check that the script is unchanged; workers would refuse another one only after the ledger is cut."""
    script = Path(spec.script)
    if record.pinned is None or not script.is_file():
        return
    if hashlib.sha256(script.read_bytes()).hexdigest() != record.pinned.script_digest:
        raise BadInput(
            f"{script} has changed since the run {spec.name} began",
            means="a changed script may train other bytes",
            do="restore the script, or add --accept-changes",
        )


def _find_last_timestamp(run_dir: RunDir) -> float:
    """Return the time of the last line that the previous attempt wrote."""
    events, newest = read_events(run_dir, torn_tail=True), read_last_step(run_dir)
    times = [event.time for event in events] + ([newest.time] if newest is not None else [])
    return max(times, default=time.time())


def _check_processes(record: RunRecord, spec: RunSpec) -> None:
    """Check that a step has virtual ranks for all processes, if each worker has another number of them now.

    Workers would refuse the number only after the ledger is cut.

    Raises:
        BadInput: it has not.
    """
    pinned, processes = record.pinned, spec.processes
    if pinned is None or processes == record.spec.processes:
        return
    if processes % pinned.sharing:
        raise BadInput(
            f"--processes {processes}, and {pinned.sharing} processes of the run divide each matrix",
            means="another number of these trains other bits: products of parts are rounded otherwise",
            do=f"use a multiple of {pinned.sharing}; or, if the script divides them otherwise, add "
            "--accept-changes",
        )
    together = processes // pinned.sharing
    if together * spec.max_workers > pinned.virtual_ranks:
        most = pinned.virtual_ranks // together
        raise BadInput(
            f"a step has {pinned.virtual_ranks} virtual ranks, too few for {spec.max_workers} workers of "
            f"{processes} processes",
            means="each process of a worker computes at least one virtual rank of every step",
            do=f"add --workers {min(spec.min_workers, most)}:{most}" if most else "use fewer --processes",
        )


def _build_record(record: RunRecord, spec: RunSpec, beginning: Resumed, *, adapted: bool) -> RunRecord:
    """Return the record of an attempt that begins after the last one in ``record``."""
    pinned, is_divided_anew = record.pinned, adapted or spec.processes != record.spec.processes
    divisions = _cut_divisions(record, beginning.step, changed=is_divided_anew)
    if pinned is not None:
        # The number of copies of the optimizer state does not affect its content.
        pinned = msgspec.structs.replace(pinned, copies=spec.copies)
        if is_divided_anew:
            # The probe hashes the results of all processes of a worker.
            pinned = msgspec.structs.replace(pinned, division=None, probe=None)
    return msgspec.structs.replace(
        record,
        spec=spec,
        pinned=None if adapted else pinned,
        resumed=beginning,
        software=read_software(spec),
        divisions=divisions,
    )


def _cut_divisions(record: RunRecord, step: int, *, changed: bool) -> tuple[PastDivision, ...]:
    """Return the divisions of the model in the steps up to this one; the steps after it are made again.

    Args:
        changed: the next attempt may divide the model in another way.
    """
    before = tuple(one for one in record.divisions if one.until < step)
    pinned = record.pinned
    last = next((one for one in record.divisions if step <= one.until), None)
    if last is None and changed and pinned is not None and pinned.division is not None:
        last = PastDivision(step, pinned.division, pinned.blocks)
    if last is None or step == 0:
        return before
    return (*before, msgspec.structs.replace(last, until=step))


def _cut_ledger(run_dir: RunDir, kept: int, lines: int) -> int:
    """Move the lines after the first ``kept`` out of the ledger; return their number."""
    if not lines:
        return 0
    with run_dir.files.open(run_dir.ledger) as file:
        text = file.read().split(b"\n")
    remaining, lost = text[:kept], text[kept:lines]
    if lost:
        with run_dir.lost_ledger.open("ab") as file:
            file.write(b"\n".join(lost) + b"\n")
            file.flush()
            os.fsync(file.fileno())
    replace_file(run_dir.ledger, b"".join(line + b"\n" for line in remaining), durable=True)
    return len(lost)
