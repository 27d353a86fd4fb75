"""Whether any process of a run exists: each holds a lock on one file of its directory, most by inheritance.

A worker may outlive its agent for a moment, or, stopped or stuck in a driver, for long. Its device is not
free before it has ended, and no other sign of that is as sure: the kernel gives the lock up with the process.
"""

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from elastane.api.rundir import RunDir

NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""No run's directory is there, or none any more."""


def be_present(run_dir: RunDir) -> int:
    """Take part in the lock, with all who are forked from now on or inherit the descriptor.

    Returns:
        The descriptor; to be kept open.

    Raises:
        OSError: the file cannot be opened.
    """
    descriptor = os.open(run_dir.presence, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def anyone_present(run_dir: RunDir) -> bool:
    """Whether some process holds the lock. Two who ask at once may take each other for one.

    Raises:
        OSError: nobody can tell.
    """
    try:
        descriptor = os.open(run_dir.presence, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in NO_DIRECTORY:
            raise
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def those_present(run_dir: RunDir) -> tuple[int, ...]:
    """Process ids of all who hold it, found by looking at every process of this user."""
    name = os.path.realpath(run_dir.presence)
    return tuple(int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _has_open(entry, name))


def _has_open(process: Path, name: str) -> bool:
    # Processes come and go, and some are not ours.
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()) == name:
                    return True
    return False
