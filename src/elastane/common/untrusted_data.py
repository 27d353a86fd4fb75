"""Decoding of bytes that come from outside: a connection, a run directory, the store, a job.

Such bytes may be damaged, or written by an attacker. A `Decoder` bounds their size and their nesting depth
before it decodes them, and raises the same error, `Malformed`, for every defect. Callers confine that error
to the connection, row, file or job that the bytes belong to.
"""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO, Generic, Literal, TypeVar

import msgspec

from elastane.common.safe_text import escape_line

T = TypeVar("T")
Format = Literal["json", "msgpack"]

DEEPEST = 64
"""The most levels of nesting. The documents of this project have fewer than 12."""
CHUNK_BYTES = 1 << 20
LARGEST_BYTES = 64 << 20
"""The size limit of one document, unless its decoder sets another one."""

# It matches a string without an end too, so that no text is searched twice.
_STRINGS = re.compile(rb'"(?:[^"\\]|\\(?:.|\Z))*+(?:"|\Z)', re.DOTALL)
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class Malformed(ValueError):
    """Bytes that are not a document of the expected kind; the message gives the reason in one short line."""


class Decoder(Generic[T]):
    """Decodes documents of one type with `msgspec`, and refuses documents that could exhaust the process.

    Args:
        kind: a type that `msgspec` knows.
        format: ``json`` or ``msgpack``.
    """

    def __init__(self, kind: Any, *, format: Format = "json", at_most_bytes: int = LARGEST_BYTES) -> None:  # noqa: A002 - a union type is no `type[T]`
        self.at_most_bytes = at_most_bytes
        self._json = format == "json"
        self._decode = (msgspec.json if self._json else msgspec.msgpack).Decoder(kind).decode

    def __call__(self, document: bytes | bytearray | str) -> T:
        """Return the value that a document describes.

        Raises:
            Malformed: the document is too large, too deep, not of this format or not of this type.
        """
        raw = document.encode(errors="surrogatepass") if isinstance(document, str) else document
        if len(raw) > self.at_most_bytes:
            raise Malformed(f"it has {len(raw)} bytes, more than {self.at_most_bytes}")
        if self._json and _is_too_deep(raw):
            raise Malformed(f"it is nested more than {DEEPEST} levels deep")
        try:
            return self._decode(raw)  # type: ignore[no-any-return]
        except RecursionError as error:
            raise Malformed("it is nested too deeply") from error
        except (msgspec.MsgspecError, ValueError, OverflowError) as error:
            raise Malformed(escape_line(str(error))) from error


def decode_object(document: bytes | str) -> dict[str, Any]:
    """Return a JSON object as Python writes it: with NaN, infinities, and integers of any size.

    Raises:
        Malformed: it is something else, or nested too deeply.
    """
    try:
        found = json.loads(document)
    except RecursionError as error:
        raise Malformed("it is nested too deeply") from error
    except ValueError as error:
        raise Malformed(escape_line(str(error))) from error
    if not isinstance(found, dict):
        raise Malformed("it is not an object")
    return found


def read_bytes(path: Path, at_most_bytes: int = LARGEST_BYTES) -> bytes:
    """Return the content of a regular file that the user has named, see `open_regular`.

    Raises:
        Malformed: the file is larger than the limit, or the path does not lead to a regular file.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        return read_at_most(file, at_most_bytes)


def read_at_most(file: BinaryIO, at_most_bytes: int) -> bytes:
    """Return the rest of a file, without reading more than the limit into memory.

    Raises:
        Malformed: it is longer.
    """
    content = bytearray()
    # A single read would allocate the limit, which a process under `ulimit -v` may not have.
    while part := file.read(min(CHUNK_BYTES, at_most_bytes + 1 - len(content))):
        content += part
        if len(content) > at_most_bytes:
            raise Malformed(f"it has more than {at_most_bytes} bytes")
    return bytes(content)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, without ever blocking as the opening of a pipe or a device can.

    Links are followed: use it for files that the user has named or written. Files below a run directory are
    opened with `elastane.common.confined_files`.

    Raises:
        Malformed: the path leads to something else.
        OSError: it cannot be opened.
    """
    # Check before opening, because opening a device may have an effect, and again after opening, because
    # another process may have replaced the file in between.
    check_regular(path.stat().st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        check_regular(os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(mode: int) -> None:
    """Raise `Malformed` unless a mode is that of a regular file."""
    if stat.S_ISREG(mode):
        return
    kinds = ((stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"))
    kind = next((name for is_one, name in kinds if is_one(mode)), "a device or a socket")
    raise Malformed(f"it is {kind}, not a regular file")


def _is_too_deep(text: bytes | bytearray) -> bool:
    # Counting is nearly always enough.
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return False
    brackets = _STRINGS.sub(b"", text).translate(_AS_SQUARE, _NO_BRACKETS)
    for _ in range(DEEPEST):
        # Removes the innermost level everywhere: much faster than a loop over all brackets.
        brackets = brackets.replace(b"[]", b"")
    # The decoder refuses a text with brackets without partners; it is at most twice as deep as the limit.
    return b"[]" in brackets or brackets.count(b"[") > DEEPEST


def read_number(text: str, most_digits: int) -> int | None:
    """Return a number that a stranger wrote in digits; None: it is not one, or has more of them."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= most_digits else None
