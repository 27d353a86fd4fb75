"""Reading the logs of a run, whatever its job has made of the directory.

The run directory belongs to the job, the controller may read more than the job's owner: so no link is
followed and nothing but a regular file is opened.
"""

import os
import re
import stat
from pathlib import Path

import msgspec

from elastane.client.owner_rights import use_owner_rights

PROCESS = r"^(agent|coordinator|fork-server|worker-\d{1,9})$"
MOST_BYTES = 1 << 20
DEFAULT_BYTES = 1 << 16


class Part(msgspec.Struct, frozen=True):
    """Some bytes of a log, and the offset of the byte after them."""

    data: bytes
    following: int


def list_processes(run_dir: str) -> tuple[str, ...]:
    """Processes that have a log, workers first in the order of their numbers; none: the job never began."""
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
    """A stretch of a log.

    Args:
        run_dir: of the job; empty: it never began.
        process: matches `PROCESS`.
        offset: of the first byte; negative: counted from the end.
        limit: at most so many bytes.

    Returns:
        None: there is no such log.
    """
    if not run_dir:
        return None
    try:
        logs = os.open(Path(run_dir) / "logs", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Not blocking: a pipe in the place of the log would never be opened.
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
        # A second name of somebody else's file looks like a file of one's own.
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            return None
        begin = max(0, found.st_size + offset) if offset < 0 else min(offset, found.st_size)
        file.seek(begin)
        data = file.read(limit)
        return Part(data, begin + len(data))
