"""Lock of a home: one controller at a time works in it, and other processes can find that controller.

Unlike the saved record of a controller, the lock is never missing or out of date. It needs no disk space once
its file exists, and the kernel releases it when the process ends.
"""

import fcntl
import os
import struct
import time
from pathlib import Path

from elastane.common.errors import BadInput

NAME = "controller.lock"
PATIENCE_S = 3.0
"""How long to wait for the lock: a controller that was just killed may still hold it."""
RETRY_S = 0.05
_FLOCK = "hhqqi4x"
"""``struct flock`` of fcntl(2): type, whence, start, length, process."""


def lock_home(home: Path) -> int:
    """Lock a home for this process until it ends; return the descriptor, which must stay open.

    This process must not close any other descriptor of the lock file, because that releases the lock.

    Raises:
        BadInput: another controller holds the lock, or the home is not writable.
    """
    path = home / NAME
    try:
        home.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise BadInput(
            f"cannot write {path} ({error.strerror})",
            means="a controller there could not be found by other commands; nothing was started",
            do="free some space, make it writable, or use another ELASTANE_HOME",
        ) from error
    deadline = time.monotonic() + PATIENCE_S
    while not _try_lock(descriptor):
        if time.monotonic() > deadline:
            os.close(descriptor)
            raise BadInput(
                f"another controller uses {home}",
                means="a machine has only one controller; nothing was started",
                do="use that one, or stop it first (`elastane down`)",
            )
        time.sleep(RETRY_S)
    return descriptor


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def find_lock_holder(home: Path) -> int | None:
    """Return the process id of the controller that works in a home; None if there is none.

    The controller itself must not call this, because it would release its own lock.
    """
    try:
        descriptor = os.open(home / NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        found = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, request))
    finally:
        os.close(descriptor)
    # The process id is 0 if the holder is not visible here, for example in another container.
    return found[4] if found[0] != fcntl.F_UNLCK and found[4] > 0 else None
