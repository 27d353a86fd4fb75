"""Documents and files as an attacker or a damaged disk leaves them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

DEEP = "[" * 5_000 + "]" * 5_000
VALUES: tuple[str, ...] = (
    "null",
    "true",
    "0",
    "-1",
    str(2**31),
    str(2**63 - 1),
    str(2**64),
    str(2**70),
    "1e-300",
    "-1e-300",
    "1e18",
    "1e308",
    "-1e308",
    '""',
    r'"\u0000"',
    r'"\ud800"',
    r'"\u001b]0;owned\u0007"',
    r'"a\nb"',
    json.dumps("x" * 10_000),
    "[]",
    "{}",
    json.dumps({str(number): number for number in range(2_000)}),
    json.dumps([[number, 1e308] for number in range(2_000)]),
    DEEP,
)
"""JSON that is valid, and often of the right type."""
GARBAGE: tuple[bytes, ...] = (
    b"",
    b"{",
    b"null",
    b"\x00" * 100,
    b"\xff\xfe",
    b"{}",
    b"[]",
    DEEP.encode(),
    b"1",
)


@st.composite
def damaged_documents(draw: st.DrawFn, document: bytes) -> bytes:
    """JSON documents with some changed values or bytes.

    Args:
        draw: as hypothesis gives it.
        document: the original.
    """
    if draw(st.integers(0, 4)) == 0:
        cut = draw(st.integers(0, len(document)))
        return draw(
            st.sampled_from((*GARBAGE, document[:cut], document[:cut] + b"\x80" + document[cut + 1 :]))
        )
    tree = json.loads(document)
    for _ in range(draw(st.integers(1, 3))):
        tree = _change_value(draw, tree)
    text = json.dumps(tree)
    for number, value in enumerate(VALUES):
        text = text.replace(f'"@{number}@"', value)
    return text.encode()


def _change_value(draw: st.DrawFn, tree: Any) -> Any:
    """Return a copy with another value at one place."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    if not keys or draw(st.integers(0, 5)) == 0:
        # A placeholder, because `json` would not write all of the values.
        return f"@{draw(st.integers(0, len(VALUES) - 1))}@"
    key = draw(st.sampled_from(keys))
    if draw(st.integers(0, 9)) == 0:
        return (
            [one for number, one in enumerate(tree) if number != key]
            if isinstance(tree, list)
            else {name: value for name, value in tree.items() if name != key}
        )
    after = tree.copy()
    after[key] = _change_value(draw, tree[key])
    return after


def _write_sparse_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 << 30)


def _write_long_line(path: Path) -> None:
    path.write_bytes(b"x" * (3 << 20))


def _write_many_lines(path: Path) -> None:
    path.write_bytes(b"{}\n" * (1 << 20))


STAND_INS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "ten gigabytes": _write_sparse_file,
    "one long line": _write_long_line,
    "a million lines": _write_many_lines,
    "a deep document": lambda path: path.write_text(DEEP),
    "bytes": lambda path: path.write_bytes(b"\x00\xff\xfe\n\x00"),
    "nothing": lambda path: path.write_bytes(b""),
}
"""Functions that make something unexpected at a free path, by name."""


def replace_with_stand_in(path: Path, stand_in: str) -> None:
    path.unlink(missing_ok=True)
    STAND_INS[stand_in](path)
