"""The files of a run directory, read back as typed values."""

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from elastane.api.errors import BadInput, NoSuchRun
from elastane.api.records import EventLine, LedgerLine
from elastane.api.rundir import RunDir
from elastane.api.spec import SCHEMA, RunRecord

T = TypeVar("T")

decode_ledger_line = msgspec.json.Decoder(LedgerLine).decode
decode_event_line = msgspec.json.Decoder(EventLine).decode


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """All a run has written down at one moment; ``live`` while its processes still write."""

    run_dir: RunDir
    record: RunRecord
    ledger: tuple[LedgerLine, ...]
    events: tuple[EventLine, ...]
    live: bool


def read_run(run_dir: RunDir) -> Recorded:
    """Everything in a run directory; files not written yet are empty.

    Raises:
        NoSuchRun: the directory holds no ``run.json``.
        BadInput: a file is damaged; the message names the line.
    """
    live = is_live(run_dir)
    record = read_record(run_dir)
    return Recorded(
        run_dir=run_dir,
        record=record,
        ledger=read_lines(run_dir.ledger, decode_ledger_line, torn_tail=live),
        events=read_lines(run_dir.events, decode_event_line, torn_tail=live),
        live=live,
    )


def read_record(run_dir: RunDir) -> RunRecord:
    """``run.json``.

    Raises:
        NoSuchRun: there is none.
        BadInput: it is damaged, or of a schema this version does not know.
    """
    try:
        text = run_dir.run.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchRun(
            f"{run_dir.root} is not a run directory: it holds no run.json",
            do="elastane list  shows the known runs",
        ) from None
    try:
        record = msgspec.json.decode(text, type=RunRecord)
    except msgspec.DecodeError as error:
        raise BadInput(f"{run_dir.run} is damaged: {error}") from error
    if record.schema != SCHEMA:
        raise BadInput(
            f"{run_dir.run} has schema {record.schema}; this version reads schema {SCHEMA}",
            do="read it with the version of elastane that wrote it",
        )
    return record


def read_lines(path: Path, decode: Callable[[bytes], T], *, torn_tail: bool) -> tuple[T, ...]:
    """The lines of a JSON-lines file; none if it does not exist.

    Args:
        path: of the file.
        decode: one line to its value.
        torn_tail: a last line without its newline is still being written, and left out; otherwise an error.

    Raises:
        BadInput: a line does not decode; the message names it.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return ()
    *whole, tail = text.split(b"\n")
    if tail and not torn_tail:
        raise BadInput(
            f"{path}, line {len(whole) + 1}: the line is torn ({len(tail)} bytes, no newline)",
            means="the run's processes were killed while writing it; every line above it is whole",
        )
    values = []
    for number, line in enumerate(whole, start=1):
        try:
            values.append(decode(line))
        except msgspec.DecodeError as error:
            raise BadInput(f"{path}, line {number}: {error}") from error
    return tuple(values)


def last_line(path: Path, decode: Callable[[bytes], T], within_bytes: int = 1 << 20) -> T | None:
    """The last whole line of a JSON-lines file, without reading all of it; None if there is none.

    Args:
        path: of the file.
        decode: one line to its value.
        within_bytes: from the end; a longer line is not found.

    Raises:
        BadInput: it does not decode.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - within_bytes))
            *whole, _torn = file.read().split(b"\n")
    except FileNotFoundError:
        return None
    if not whole:
        return None
    try:
        return decode(whole[-1])
    except msgspec.DecodeError as error:
        raise BadInput(f"{path}, last line: {error}") from error


def is_live(run_dir: RunDir) -> bool:
    """Whether the run's agent still holds its lock."""
    try:
        with run_dir.lock.open("rb") as lock:
            try:
                # Shared, so that two who ask at once do not take each other for the agent.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    except (FileNotFoundError, NotADirectoryError):
        return False
    return False
