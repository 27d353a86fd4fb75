"""A reader of the rows of jsonl, parquet and Arrow files, which needs little memory and trusts no byte."""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from elastane.common.errors import BadInput
from elastane.common.extras import require_for_import
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import LARGEST_BYTES, Malformed, decode_object

LINES = (".jsonl", ".ndjson")
TABLES = (".parquet", ".arrow")
BATCH_ROWS = 256
ARROW_FILE = b"ARROW1"
"""The first bytes of an Arrow file; a file of an Arrow stream, as `datasets` writes it, has no such mark."""


class BadRow(ValueError):
    """A file has no rows of the wanted kind; the message gives the line or row, and the reason."""


class Row(msgspec.Struct, frozen=True):
    """One row of a file; ``place`` names it in messages, such as ``line 3``, from 1."""

    place: str
    fields: dict[str, Any]


def find_kind(path: Path) -> str:
    """Return the suffix that decides how a file is read: the one before ``.gz``, if it has that."""
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a jsonl file, which may have the suffix ``.gz``, or of a parquet or Arrow file.

    Args:
        path: of the file; its suffix decides.
        columns: the columns to read of a table. A row lacks those that the table lacks.

    Raises:
        BadRow: a line is not a JSON object or too long, or a table has none of the columns.
        BadInput: the file cannot be read at all.
    """
    with explain_read_errors(path):
        yield from _read_tables(path, columns) if find_kind(path) in TABLES else _read_lines(path)


@contextmanager
def explain_read_errors(path: Path) -> Iterator[None]:
    """Turn the errors of reading a file into one that names the file."""
    try:
        yield
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise BadInput(
            f"{path} cannot be read: {escape_line(str(error))}",
            means="the training would miss its text",
            do="check that the file is complete, readable and in UTF-8",
        ) from error


def _read_lines(path: Path) -> Iterator[Row]:
    with cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb") as file:
        number = 0
        while line := file.readline(LARGEST_BYTES + 1):
            number += 1
            if len(line) > LARGEST_BYTES:
                raise BadRow(f"line {number} has more than {LARGEST_BYTES} bytes")
            if not line.strip():
                continue
            try:
                fields = decode_object(line)
            except Malformed as error:
                raise BadRow(f"line {number}: {error}") from error
            yield Row(f"line {number}", fields)


def _read_tables(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    with require_for_import("text", f"{path} needs pyarrow, which reads {path.suffix} files"):
        import pyarrow as pa
    number = 0
    try:
        for batch in _read_arrow(path, columns) if path.suffix == ".arrow" else _read_parquet(path, columns):
            for start in range(0, batch.num_rows, BATCH_ROWS):
                for fields in batch.slice(start, BATCH_ROWS).to_pylist():
                    number += 1
                    yield Row(f"row {number}", fields)
    except pa.ArrowException as error:
        raise OSError(f"it is not a valid {path.suffix} file: {error}") from error


def _read_parquet(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        present = _select_columns(file.schema_arrow.names, columns)
        yield from file.iter_batches(batch_size=BATCH_ROWS, columns=present)


def _read_arrow(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        if file.read(len(ARROW_FILE)) == ARROW_FILE:
            table = pa.ipc.open_file(file)
            batches = (table.get_batch(number) for number in range(table.num_record_batches))
        else:
            file.seek(0)
            batches = table = pa.ipc.open_stream(file)
        present = _select_columns(table.schema.names, columns)
        yield from (batch.select(present) for batch in batches)


def _select_columns(names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    present = [column for column in wanted if column in names]
    if not present:
        raise BadRow(f"its columns are {', '.join(map(escape_line, names))}")
    return present
