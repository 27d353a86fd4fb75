"""Reading of the files of a run directory as typed values."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from elastane.common.atomic_file import replace_file
from elastane.common.confined_files import ConfinedDirectory
from elastane.common.errors import BadInput, NoSuchRun
from elastane.common.home import find_runs_home
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.connections.run_lock import is_live
from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import SCHEMA, RunRecord, RunSpec
from elastane.run.observability.line_files import read_last_line
from elastane.run.observability.tail import LONGEST_LINE_BYTES

T = TypeVar("T")

LARGEST_RECORD_BYTES = 1 << 20
"""The size limit of ``run.json``."""

decode_ledger_line = Decoder[LedgerLine](LedgerLine, at_most_bytes=LONGEST_LINE_BYTES)
decode_event_line = Decoder[EventLine](EventLine, at_most_bytes=LONGEST_LINE_BYTES)
_decode_record = Decoder[RunRecord](RunRecord, at_most_bytes=LARGEST_RECORD_BYTES)


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a run at one time; ``live`` is True while its processes may still write."""

    run_dir: RunDir
    record: RunRecord
    ledger: tuple[LedgerLine, ...]
    events: tuple[EventLine, ...]
    live: bool


def list_run_names() -> list[str]:
    """Return the names of all runs in the home, sorted."""
    if not find_runs_home().is_dir():
        return []
    return sorted(entry.name for entry in find_runs_home().iterdir() if RunDir(entry).run.is_file())


def read_run(run_dir: RunDir) -> Recorded:
    """Return the records in a run directory; files that do not exist yet count as empty.

    Raises:
        NoSuchRun: the directory has no ``run.json``.
        BadInput: a file is damaged; the message names the line.
    """
    live = is_live(run_dir)
    record = read_record(run_dir)
    return Recorded(
        run_dir=run_dir,
        record=record,
        ledger=read_ledger(run_dir, torn_tail=live),
        events=read_events(run_dir, torn_tail=live),
        live=live,
    )


def read_record(run_dir: RunDir) -> RunRecord:
    """Return the content of ``run.json``.

    Raises:
        NoSuchRun: there is none.
        BadInput: it is damaged, or this version does not know its schema.
    """
    try:
        record = _decode_record(run_dir.files.read(run_dir.run, LARGEST_RECORD_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchRun(
            f"{run_dir.root} is not a run directory: it holds no run.json",
            do="elastane list shows the known runs",
        ) from None
    except Malformed as error:
        raise BadInput(f"{run_dir.run} is damaged: {error}") from error
    if record.schema != SCHEMA:
        raise BadInput(
            f"{run_dir.run} has schema {record.schema}; this version reads schema {SCHEMA}",
            do="read it with the version of elastane that wrote it",
        )
    return record


def write_record(run_dir: RunDir, record: RunRecord) -> None:
    """Replace ``run.json``.

    Raises:
        OSError: it cannot be written.
    """
    content = msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
    replace_file(run_dir.run, content, durable=True)


def keep_places(run_dir: RunDir, own: RunSpec) -> None:
    """Let a record of another machine name the script and the directory where this machine has them.

    Args:
        own: names them.

    Raises:
        NoSuchRun, BadInput: the record cannot be read.
        OSError: it cannot be written.
    """
    record = read_record(run_dir)
    spec = msgspec.structs.replace(record.spec, script=own.script, directory=own.directory)
    write_record(run_dir, msgspec.structs.replace(record, spec=spec))


def read_ledger(run_dir: RunDir, *, torn_tail: bool) -> tuple[LedgerLine, ...]:
    """Return the ledger of a run; see `read_lines`.

    Raises:
        BadInput: a line is damaged; the message names it.
    """
    return read_lines(run_dir.ledger, decode_ledger_line, torn_tail=torn_tail)


def read_lost_ledger(run_dir: RunDir, count: int) -> tuple[LedgerLine, ...]:
    """Return the last lines of ``ledger.lost.jsonl``, at most ``count``; see `read_lines`.

    Raises:
        BadInput: a line is damaged; the message names it.
    """
    if not count:
        return ()
    return read_lines(run_dir.lost_ledger, decode_ledger_line, torn_tail=True)[-count:]


def read_events(run_dir: RunDir, *, torn_tail: bool) -> tuple[EventLine, ...]:
    """Return the events of a run; see `read_lines`.

    Raises:
        BadInput: a line is damaged; the message names it.
    """
    return read_lines(run_dir.events, decode_event_line, torn_tail=torn_tail)


def read_last_step(run_dir: RunDir) -> LedgerLine | None:
    """Return the last complete line of the ledger without reading the others; None: there is none.

    Raises:
        BadInput: the line is damaged.
    """
    return read_last_line(run_dir.ledger, decode_ledger_line)


def read_lines(path: Path, decode: Callable[[bytes], T], *, torn_tail: bool) -> tuple[T, ...]:
    """Return the lines of a JSON-lines file directly in a run directory; none if it does not exist.

    Args:
        torn_tail: leave out a last line without its newline, because it is still being written. False: such a
            line is an error.

    Raises:
        BadInput: a line does not decode; the message names it.
    """
    values = []
    number = 0
    try:
        with ConfinedDirectory(path.parent).open(path) as file:
            for number, line in enumerate(_iterate_lines(file), start=1):
                if line.endswith(b"\n"):
                    values.append(decode(line[:-1]))
                elif not torn_tail:
                    raise _make_torn_line_error(path, number, line)
    except FileNotFoundError:
        return ()
    except Malformed as error:
        place = f"{path}, line {number}" if number else f"{path} cannot be read"
        raise BadInput(f"{place}: {error}") from error
    return tuple(values)


def _make_torn_line_error(path: Path, number: int, line: bytes) -> BadInput:
    return BadInput(
        f"{path}, line {number}: the line is incomplete ({len(line)} bytes, no newline)",
        means="the run's processes were killed while they wrote it; all earlier lines are complete",
    )


def _iterate_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file's lines with their newlines.

    Raises:
        Malformed: a line is longer than any that Elastane writes.
    """
    while line := file.readline(LONGEST_LINE_BYTES + 1):
        if len(line) > LONGEST_LINE_BYTES:
            raise Malformed(f"it has more than {LONGEST_LINE_BYTES} bytes")
        yield line
