"""A worker's log: what the script prints goes there, and a full disk costs lines, not the training."""

import errno
import io
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer

REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a disk that is full, past a quota or a limit, or broken."""


class WorkerLog(io.FileIO):
    """Takes what the disk takes."""

    def write(self, data: "Buffer", /) -> int:
        """The bytes written or, where the disk takes no more, lost."""
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
            return memoryview(data).nbytes


def open_worker_log(fd: int) -> TextIO:
    """A stream to print to, on a file descriptor that stays open."""
    raw = WorkerLog(fd, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
