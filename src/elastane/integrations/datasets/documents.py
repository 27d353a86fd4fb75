"""A reader of the documents in text files, which needs little memory."""

import gzip
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import IO, cast

from elastane.common.errors import BadInput
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import LARGEST_BYTES
from elastane.integrations.datasets.rows import (
    LINES,
    TABLES,
    BadRow,
    explain_read_errors,
    find_kind,
    read_rows,
)

PIECE_CHARACTERS = 1 << 20


def read_documents(path: Path, field: str) -> Iterator[Iterator[str]]:
    """Yield each document of a file as an iterator over its pieces.

    A ``.jsonl`` (or ``.ndjson``) file has a document in each line, a ``.parquet`` or ``.arrow`` file in each
    row, all under ``field``. Any other file is one document of plain text, in pieces of about a million
    characters that end with a line. Lines and plain text may also have the suffix ``.gz``.

    Raises:
        BadInput: the file cannot be read this way.
    """
    if find_kind(path) in LINES + TABLES:
        yield from _read_fields(path, field)
    else:
        yield _read_pieces(path)


def _read_fields(path: Path, field: str) -> Iterator[Iterator[str]]:
    try:
        for row in read_rows(path, (field,)):
            if field not in row.fields:
                names = ", ".join(map(escape_line, row.fields)) or "none"
                raise _build_no_text_error(path, field, f"{row.place} has the fields {names}")
            text = row.fields[field]
            if not isinstance(text, str):
                why = f"{row.place} has a value of type {type(text).__name__}"
                raise _build_no_text_error(path, field, why)
            yield iter((text,))
    except BadRow as error:
        raise _build_no_text_error(path, field, str(error)) from error


def _open_text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return TextIOWrapper(cast("IO[bytes]", gzip.open(path)), encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _read_pieces(path: Path) -> Iterator[str]:
    with explain_read_errors(path), _open_text(path) as file:
        while piece := file.read(PIECE_CHARACTERS):
            yield piece + file.readline(LARGEST_BYTES)


def _build_no_text_error(path: Path, field: str, why: str) -> BadInput:
    return BadInput(
        f"{path} has no text under {field!r}: {why}",
        means="the training would miss the document",
        do="name the field of the text with field=... (in a recipe data.fields.text), or correct the file",
    )
