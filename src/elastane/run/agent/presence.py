"""The presence lock of a run: every process of the run holds it, most of them by inheritance.

A worker may outlive its agent, for a long time if it is stopped or stuck in a driver. Its device is not free
before it has ended. The lock is the most reliable sign of that, because the kernel releases it with the
process.
"""

import contextlib
import errno
import fcntl
import os
import stat
import time
from pathlib import Path

from elastane.common import process_identity
from elastane.run.nouns.rundir import RunDir

NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""The error numbers for a run directory that does not exist or was removed."""
LOCK_CHECK_S = 1.0
"""Longer than another process holds a lock to check whether a run is live."""
RETRY_S = 0.01


def hold_presence(run_dir: RunDir) -> int:
    """Take the lock, shared, for this process and all that inherit the descriptor.

    Returns:
        The descriptor, which must stay open.

    Raises:
        OSError: the file cannot be opened, or another process holds the lock exclusively.
    """
    descriptor = _open_presence_file(run_dir.presence, os.O_CREAT)
    give_up = time.monotonic() + LOCK_CHECK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            # `is_any_process_present` holds the lock for a moment. A process of the job that holds it
            # exclusively for longer must not block the controller.
            if not isinstance(error, BlockingIOError) or time.monotonic() > give_up:
                os.close(descriptor)
                raise
            time.sleep(RETRY_S)
        else:
            return descriptor


def is_any_process_present(run_dir: RunDir) -> bool:
    """Return whether some process holds the lock; two simultaneous callers may report each other.

    Raises:
        OSError: the file cannot be checked.
    """
    try:
        descriptor = _open_presence_file(run_dir.presence)
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


def _open_presence_file(presence: Path, flags: int = 0) -> int:
    """Open the lock file, but no pipe and no link, which a job may have put in its place.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    # Do not raise ELOOP, which would mean that the directory is missing.
    if presence.is_symlink():
        raise OSError(errno.EINVAL, "a symbolic link, not a regular file", str(presence))
    flags |= os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(presence, flags, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(presence))
    return descriptor


def list_present_processes(run_dir: RunDir, user: int | None = None) -> tuple[int, ...]:
    """Return the ids of all processes that have the file of the lock open.

    Links in the file's place are not followed: with a link to ``/dev/null``, the list would contain every
    process of the machine.

    Args:
        user: count only processes of the user with this id; None: of every user.
    """
    pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return tuple(
        pid
        for pid in pids
        if (user is None or process_identity.read_user_id(pid) == user) and is_present(run_dir, pid)
    )


def is_present(run_dir: RunDir, pid: int) -> bool:
    """Return whether this process holds the lock, even if the file has been removed or replaced since."""
    # Do not resolve the last part of the path: a link there may lead to another run's file.
    name = os.path.join(os.path.realpath(run_dir.root), run_dir.presence.name)  # noqa: PTH118 - compared as text
    # A process may end meanwhile, or belong to another user.
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()) in {name, f"{name} (deleted)"}:
                    return True
    return False


def move_presence_aside(run_dir: RunDir) -> None:
    """Rename the entry in the file's place, if it cannot be locked and no process has the file open.

    Call it after the processes of the run have been killed; without it their end could never be detected.
    """
    try:
        is_any_process_present(run_dir)
    except OSError:
        if not list_present_processes(run_dir):
            run_dir.presence.rename(run_dir.presence.with_name(f"presence.refused-{time.time_ns()}"))
