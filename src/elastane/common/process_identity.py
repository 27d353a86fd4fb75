"""The identity of processes: another process may get the same pid, but not the same start time."""

import os
from pathlib import Path

STARTED = 19
"""Index of the start time in ``/proc/PID/stat`` after the name in brackets: field 22, see proc(5)."""


def read_start_time(pid: int) -> int | None:
    """Return when the kernel started a process, in clock ticks since boot; None: it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[STARTED])


def read_user_id(pid: int) -> int | None:
    """Return the id of the user that a process belongs to; None: it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Read the real id: only root can change it to that of another user.
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:")), None)


def open_process(pid: int, start: int) -> int | None:
    """Return a pidfd of the process that began at ``start``; None: it has ended. The caller closes it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # Check after opening: from then on the descriptor cannot refer to another process.
    if read_start_time(pid) == start:
        return descriptor
    os.close(descriptor)
    return None
