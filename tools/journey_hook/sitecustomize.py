"""Trace Elastane's own code: Python imports this in each process that tools/measure_journeys.py starts.

Writes one line per change of file within a thread: time, process, thread, file, function. `plan begins` and
`plan ends` enclose each call of the scheduler.
"""

import os
import sys
import threading
import time
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType

TRACE = os.environ.get("ELASTANE_JOURNEYS")
ROOT = "/src/elastane/"

_local = threading.local()
_files: dict[CodeType, str] = {}


def _write(place: str, function: str) -> None:
    line = f"{time.monotonic_ns()} {os.getpid()} {threading.get_ident()} {place} {function}\n"
    with Path(TRACE or os.devnull).open("a") as trace:
        trace.write(line)


def _trace(frame: FrameType, event: str, _argument: object) -> None:
    if event not in {"call", "return"}:
        return
    code = frame.f_code
    place = _files.get(code)
    if place is None:
        # Bodies of modules and classes do not count as functions.
        is_function = code.co_flags & CO_OPTIMIZED
        place = _files[code] = code.co_filename.partition(ROOT)[2] if is_function else ""
    if not place:
        return
    is_plan = code.co_name == "plan" and place == "cluster/scheduler/plan.py"
    if event == "call":
        if is_plan:
            _write("plan", "begins")
        if getattr(_local, "place", None) != place:
            _local.place = place
            _write(place, code.co_name)
    elif is_plan:
        _write("plan", "ends")


if TRACE:
    threading.setprofile(_trace)
    sys.setprofile(_trace)
