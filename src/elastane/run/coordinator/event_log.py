"""The part of ``events.jsonl`` that a new coordinator reads: the last events, and every change before them.

A run of a million steps has hundreds of megabytes of events, and a change of membership waits for the read.
"""

import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path

from elastane.run.nouns.records import EventLine
from elastane.run.observability.line_files import find_end_of_lines
from elastane.run.observability.run_files import decode_event_line

TAIL_BYTES = 1 << 20
CHANGE = re.compile(rb'"kind":"(?!message"|evaluation")')
"""A pattern of lines about changes, but not of lines that scripts print: texts have escaped quotes."""


def read_changes(path: Path) -> Iterator[EventLine]:
    """Yield the events about changes in order, and every event of the last mebibyte.

    Args:
        path: the path of a file of whole lines.

    Raises:
        OSError: the file cannot be read.
        Malformed: a line is not a valid event.
    """
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        if end == 0:
            return
        tail = find_end_of_lines(file.fileno(), max(0, end - TAIL_BYTES))
        lines = mmap.mmap(file.fileno(), end, prot=mmap.PROT_READ)
    with lines:
        for found in CHANGE.finditer(lines, 0, tail):
            start = lines.rfind(b"\n", 0, found.start()) + 1
            yield decode_event_line(lines[start : lines.find(b"\n", start)])
        for line in lines[tail:end].splitlines():
            yield decode_event_line(line)
