"""A worker's log, which has the script's output; a full disk loses lines but does not stop training."""

import io
from typing import TYPE_CHECKING, TextIO

from elastane.common.atomic_file import FULL_DISK

if TYPE_CHECKING:
    from typing_extensions import Buffer

TAIL_BYTES = 2000
"""The end of the output that a worker remembers, for an error."""


class WorkerLog(io.FileIO):
    """A file that accepts writes on a full disk, and loses them.

    Attributes:
        tail: the last bytes that were written.
    """

    tail = b""

    def write(self, data: "Buffer", /) -> int:
        """Write data; return the number of bytes that are written or, on a full disk, lost."""
        self.tail = (self.tail + bytes(data)[-TAIL_BYTES:])[-TAIL_BYTES:]
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            return memoryview(data).nbytes


def open_worker_log(fd: int) -> TextIO:
    """Return a stream to print to, on a file descriptor that stays open."""
    raw = WorkerLog(fd, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )


def read_last_lines(stream: object, most: int) -> list[str]:
    """Return the last lines that were printed to a stream of `open_worker_log`; empty: it is another one."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if not isinstance(raw, WorkerLog):
        return []
    return raw.tail.decode("utf-8", errors="replace").splitlines()[-most:]
