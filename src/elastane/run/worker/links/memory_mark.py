"""The mark by which a peer knows that it can read the memory of this worker: both are on one machine.

A process id alone does not tell that. On another machine, or in another container, it may be the id of
another process, with descriptors of its own.
"""

import contextlib
import os
import weakref
from pathlib import Path

MARK_BYTES = 16


class MemoryMark:
    """Random bytes in a memfd, which no other process has.

    Attributes:
        fd: the descriptor of the memfd.
    """

    def __init__(self) -> None:
        self.value = os.urandom(MARK_BYTES)
        self.fd = os.memfd_create("elastane-mark")
        weakref.finalize(self, os.close, self.fd)
        os.pwrite(self.fd, self.value, 0)


def has_mark(pid: int, fd: int, value: bytes) -> bool:
    """Return whether descriptor ``fd`` of process ``pid`` on this machine has this mark.

    False if this process may not look, for example in a sandbox.
    """
    path = Path(f"/proc/{pid}/fd/{fd}")
    with contextlib.suppress(OSError):
        # To open the pipe or the device of an unrelated process could wait, or change something.
        if path.is_file():
            # Writable, because peers open arenas so.
            with path.open("r+b", buffering=0) as file:
                return file.read(MARK_BYTES) == value
    return False
