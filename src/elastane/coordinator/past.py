"""What a new coordinator reads of the run's files: the end of each, and the changes in between.

A run of a million steps has hundreds of megabytes of them, and a change of membership waits meanwhile.
"""

import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path

from elastane.api.records import EventLine
from elastane.observability.run_files import decode_event_line

READ_BYTES = 1 << 16
TAIL_BYTES = 1 << 20
CHANGE = re.compile(rb'"kind":"(?!message"|evaluation")')
"""In each line about a change. What scripts say without end is passed over. In a text, quotes are escaped."""


def after_newline(fd: int, end: int) -> int:
    """Just behind the last newline among the first ``end`` bytes; 0 without one."""
    while end > 0:
        start = max(0, end - READ_BYTES)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def last_line(fd: int, end: int) -> bytes | None:
    """The line that ends with byte ``end`` of a file, without its newline; None: there is none."""
    if end == 0:
        return None
    start = after_newline(fd, end - 1)
    return os.pread(fd, end - 1 - start, start)


def changes(path: Path) -> Iterator[EventLine]:
    """What a file of events, in whole lines, tells about changes, in order; of the last mebibyte everything.

    Raises:
        OSError: the file cannot be read.
        Malformed: a line is not understood.
    """
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        if end == 0:
            return
        tail = after_newline(file.fileno(), max(0, end - TAIL_BYTES))
        lines = mmap.mmap(file.fileno(), end, prot=mmap.PROT_READ)
    with lines:
        for found in CHANGE.finditer(lines, 0, tail):
            start = lines.rfind(b"\n", 0, found.start()) + 1
            yield decode_event_line(lines[start : lines.find(b"\n", start)])
        for line in lines[tail:end].splitlines():
            yield decode_event_line(line)
