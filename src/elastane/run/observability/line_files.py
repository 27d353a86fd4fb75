"""The last lines of JSON-lines files. A crash or a full disk can leave a torn one, without its newline."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from elastane.common.confined_files import ConfinedDirectory
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Malformed

T = TypeVar("T")

READ_BYTES = 1 << 16


def find_end_of_lines(fd: int, end: int, start: int = 0) -> int:
    """Return the offset after the last newline in bytes ``[start, end)`` of a file, or ``start``."""
    while end > start:
        begin = max(start, end - READ_BYTES)
        at = os.pread(fd, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return start


def read_line_before(fd: int, end: int, start: int = 0) -> bytes | None:
    """Return the line that ends with byte ``end - 1``, without its newline; None if ``end`` is ``start``."""
    if end == start:
        return None
    begin = find_end_of_lines(fd, end - 1, start)
    return os.pread(fd, end - 1 - begin, begin)


def cut_torn_line(fd: int) -> int:
    """Truncate a file after its last newline and return its new size in bytes.

    Call it only from the process that may write the file, once no other process writes to it.
    """
    end = find_end_of_lines(fd, os.lseek(fd, 0, os.SEEK_END))
    os.ftruncate(fd, end)
    return end


def remove_torn_line(path: Path) -> None:
    """Remove a torn last line from a file, if the file exists; see `cut_torn_line`."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        cut_torn_line(file.fileno())


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a file, after its last complete line; see `cut_torn_line`."""
    with path.open("a+b") as file:
        cut_torn_line(file.fileno())
        file.write(line + b"\n")


def read_last_line(path: Path, decode: Callable[[bytes], T], within_bytes: int = 1 << 20) -> T | None:
    """Return the last complete line of a file directly in a run directory, without reading all of it.

    Args:
        within_bytes: how much of the end of the file is searched; a longer line is not found.

    Returns:
        The decoded line; None: there is none.

    Raises:
        BadInput: the line does not decode.
    """
    try:
        with ConfinedDirectory(path.parent).open(path, in_part=True) as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - within_bytes)
            line = read_line_before(file.fileno(), find_end_of_lines(file.fileno(), size, start), start)
        return None if line is None else decode(line)
    except FileNotFoundError:
        return None
    except Malformed as error:
        raise BadInput(f"{path}, last line: {error}") from error
