"""A reader of the documents in text files, which needs little memory."""

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, cast

from elastane.api.errors import BadInput
from elastane.api.extras import require_for_import

PIECE_CHARACTERS = 1 << 20
LINES = (".jsonl", ".ndjson")


def read_documents(path: Path, field: str) -> Iterator[Iterator[str]]:
    """Yield each document of a file as an iterator over its pieces.

    A ``.jsonl`` (or ``.ndjson``) file has a document in each line, a ``.parquet`` file in each row, both
    under ``field``. Any other file is one document of plain text, in pieces of about a million characters
    that end with a line. All but parquet may also have the suffix ``.gz``.

    Raises:
        BadInput: the file cannot be read this way.
    """
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind == ".parquet":
        yield from _read_rows(path, field)
    elif kind in LINES:
        yield from _read_lines(path, field)
    else:
        yield _read_pieces(path)


@contextmanager
def _explain_read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{path} cannot be read: {error}",
            means="the training would miss its text",
            do="check that the file is complete, readable and in UTF-8",
        ) from error


def _open_text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return TextIOWrapper(cast("IO[bytes]", gzip.open(path)), encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _read_lines(path: Path, field: str) -> Iterator[Iterator[str]]:
    with _explain_read_errors(path), _open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[field]
            except (ValueError, KeyError, TypeError) as error:
                raise _build_no_text_error(path, field, f"line {number}: {error!r}") from error
            if not isinstance(text, str):
                raise _build_no_text_error(
                    path, field, f"line {number} has a value of type {type(text).__name__}"
                )
            yield iter((text,))


def _read_rows(path: Path, field: str) -> Iterator[Iterator[str]]:
    with require_for_import("text", f"{path} needs pyarrow, which reads parquet files"):
        from pyarrow import parquet
    with _explain_read_errors(path), parquet.ParquetFile(path) as file:
        if field not in file.schema_arrow.names:
            raise _build_no_text_error(path, field, f"its columns are {', '.join(file.schema_arrow.names)}")
        for batch in file.iter_batches(batch_size=256, columns=[field]):
            for text in batch.column(0).to_pylist():
                if not isinstance(text, str):
                    raise _build_no_text_error(
                        path, field, f"a row has a value of type {type(text).__name__}"
                    )
                yield iter((text,))


def _read_pieces(path: Path) -> Iterator[str]:
    with _explain_read_errors(path), _open_text(path) as file:
        while piece := file.read(PIECE_CHARACTERS):
            yield piece + file.readline()


def _build_no_text_error(path: Path, field: str, why: str) -> BadInput:
    return BadInput(
        f"{path} has no text under {field!r}: {why}",
        means="the training would miss the document",
        do="name the field of the text with field=..., or correct the file",
    )
