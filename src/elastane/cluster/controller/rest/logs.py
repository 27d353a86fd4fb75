"""Safe reading of a run's logs, in a directory that the job may have changed.

The run directory belongs to the job, and the controller may read more files than the job's owner. So no link
is followed, and only regular files are opened.
"""

import os
import re
import stat
from pathlib import Path

import msgspec

from elastane.common.permissions import use_owner_rights

PROCESS = r"^(agent|coordinator|fork-server|worker-\d{1,9})$"
MOST_BYTES = 1 << 20
DEFAULT_BYTES = 1 << 16


class Part(msgspec.Struct, frozen=True):
    """A part of a log, and the offset of the byte after it."""

    data: bytes
    following: int


def list_processes(run_dir: str) -> tuple[str, ...]:
    """Return the processes that have a log: workers in the order of their numbers, then the others.

    Args:
        run_dir: of the job; empty: it never began, and has no processes.
    """
    if not run_dir:
        return ()
    try:
        with use_owner_rights(Path(run_dir)):
            logs = os.open(
                Path(run_dir) / "logs", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
    except OSError:
        return ()
    try:
        names = (
            Path(name).stem
            for name in os.listdir(logs)  # noqa: PTH208 - of a descriptor
            if name.endswith(".log")
        )
        found = (name for name in names if re.fullmatch(PROCESS, name))
        return tuple(sorted(found, key=lambda name: (not name.startswith("worker-"), len(name), name)))
    finally:
        os.close(logs)


def read_log_part(run_dir: str, process: str, offset: int, limit: int) -> Part | None:
    """Return a part of a log.

    Args:
        run_dir: of the job; empty: it never began.
        process: matches `PROCESS`.
        offset: of the first byte; negative: counted from the end.

    Returns:
        The part; None: there is no such log.
    """
    if not run_dir:
        return None
    try:
        logs = os.open(Path(run_dir) / "logs", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Without O_NONBLOCK, opening a pipe in the place of the log would block for ever.
        with use_owner_rights(Path(run_dir)):
            fd = os.open(
                f"{process}.log", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=logs
            )
    except OSError:
        return None
    finally:
        os.close(logs)
    with open(fd, "rb") as file:  # noqa: PTH123 - of a descriptor
        found = os.fstat(fd)
        # A hard link to another user's file would look like a file of the job.
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            return None
        begin = max(0, found.st_size + offset) if offset < 0 else min(offset, found.st_size)
        file.seek(begin)
        data = file.read(limit)
        return Part(data, begin + len(data))
