"""Decode bytes that come from outside: a connection, a run directory, the store, a job.

Such bytes may be damaged, or written by an attacker. A `Decoder` bounds their size and their nesting depth
before it decodes them, and raises one error, `Malformed`, whatever is wrong with them. Callers confine that
error to the connection, row, file or job that the bytes belong to.
"""

import re
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from elastane.api.printable import one_line

T = TypeVar("T")
Format = Literal["json", "msgpack"]

DEEPEST = 64
"""Levels of nesting. The documents of this project have fewer than 12."""
LARGEST_BYTES = 64 << 20
"""Of one document, unless its decoder says otherwise."""

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
_STEPS = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}


class Malformed(ValueError):
    """Bytes are not a document of the expected kind; the message says why in one short line."""


class Decoder(Generic[T]):
    """Decodes documents of one type, as `msgspec` does, and refuses what could exhaust the process.

    Args:
        kind: a type that `msgspec` knows.
        format: ``json`` or ``msgpack``.
        at_most_bytes: size of the largest document.
    """

    def __init__(self, kind: Any, *, format: Format = "json", at_most_bytes: int = LARGEST_BYTES) -> None:  # noqa: A002, ANN401 - a union type is no `type[T]`
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
        if self._json and _too_deep(raw):
            raise Malformed(f"it is nested more than {DEEPEST} levels deep")
        try:
            return self._decode(raw)  # type: ignore[no-any-return]
        except RecursionError as error:
            raise Malformed("it is nested too deeply") from error
        except (msgspec.MsgspecError, ValueError, OverflowError) as error:
            raise Malformed(one_line(str(error))) from error


def read_bytes(path: Path, at_most_bytes: int = LARGEST_BYTES) -> bytes:
    """Return the content of a file, without reading more of it into memory than is allowed.

    Raises:
        Malformed: the file is larger.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(at_most_bytes + 1)
    if len(content) > at_most_bytes:
        raise Malformed(f"it has more than {at_most_bytes} bytes")
    return content


def _too_deep(text: bytes | bytearray) -> bool:
    # Counting is a hundred times faster than following, and nearly always enough.
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return False
    depth = 0
    for token in _TOKENS.finditer(text):
        depth += _STEPS.get(token[0], 0)
        if depth > DEEPEST:
            return True
    return False
