"""One controller at a time works in a home, and whoever looks finds its process.

The lock needs no room on the disk once its file exists, and cannot outlive the process: unlike what is
written down about a controller, it is never missing and never out of date.
"""

import fcntl
import os
import struct
import time
from pathlib import Path

from elastane.api.errors import BadInput

NAME = "controller.lock"
PATIENCE_S = 3.0
"""One that was killed a moment ago may not be gone yet."""
AGAIN_S = 0.05
_FLOCK = "hhqqi4x"
"""``struct flock`` of fcntl(2): type, from where, start, length, process."""


def lock_home(home: Path) -> int:
    """Lock a home for this process until it ends; return the descriptor that must stay open.

    No other descriptor of that file must be closed by this process: the lock would go with it.

    Raises:
        BadInput: another controller has it, or it cannot be written.
    """
    path = home / NAME
    try:
        home.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise BadInput(
            f"cannot write {path} ({error.strerror})",
            means="nobody could know that a controller works there; nothing was started",
            do="make room there, or make it writable; or name another ELASTANE_HOME",
        ) from error
    give_up_s = time.monotonic() + PATIENCE_S
    while not _try_lock(descriptor):
        if time.monotonic() > give_up_s:
            os.close(descriptor)
            raise BadInput(
                f"another controller works in {home}",
                means="this machine's devices are given out by one; nothing was started",
                do="use that one, or end it first (`elastane down`)",
            )
        time.sleep(AGAIN_S)
    return descriptor


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def find_lock_holder(home: Path) -> int | None:
    """Return the process of the controller that works in a home; None: none does.

    Not to be asked by that process itself: its lock would be gone.
    """
    try:
        descriptor = os.open(home / NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        found = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    finally:
        os.close(descriptor)
    # A process that this one cannot see, in another container for example, has the number 0.
    return found[4] if found[0] != fcntl.F_UNLCK and found[4] > 0 else None
