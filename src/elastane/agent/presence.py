"""The presence lock of a run: every process of the run holds it, most of them by inheritance.

A worker may outlive its agent, for long if it is stopped or stuck in a driver. Its device is not free before
it has ended, and the lock is the surest sign of that: the kernel releases it with the process.
"""

import contextlib
import errno
import fcntl
import os
import stat
import time
from pathlib import Path

from elastane.agent import process_identity
from elastane.api.rundir import RunDir

NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""There is no run directory, or it was removed."""
PATIENCE_S = 1.0
RETRY_S = 0.01


def hold_presence(run_dir: RunDir) -> int:
    """Take a shared hold of the lock, for this process and all that inherit the descriptor.

    Returns:
        The descriptor, which must stay open.

    Raises:
        OSError: the file cannot be opened, or another process keeps the lock for itself.
    """
    descriptor = _open_presence_file(run_dir.presence, os.O_CREAT)
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            # `is_any_process_present` holds the lock for a moment. A process of the job that holds it alone
            # for longer must not stop the controller.
            if not isinstance(error, BlockingIOError) or time.monotonic() > give_up:
                os.close(descriptor)
                raise
            time.sleep(RETRY_S)
        else:
            return descriptor


def is_any_process_present(run_dir: RunDir) -> bool:
    """Whether some process holds the lock; two simultaneous callers may report each other.

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
    """Open the file if it is a regular one: a job may have put a pipe there, or a link to another run's file.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    # Not ELOOP, which says that the directory is not there.
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

    The file itself is not resolved: if a job put a link in its place, to ``/dev/null`` say, every process of
    the machine would be among them.

    Args:
        run_dir: of the run.
        user: id of the only user whose processes count; None: any.
    """
    pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return tuple(
        pid
        for pid in pids
        if (user is None or process_identity.read_user_id(pid) == user) and is_present(run_dir, pid)
    )


def is_present(run_dir: RunDir, pid: int) -> bool:
    """Whether this process holds the lock, even if the file has been removed or replaced since."""
    # The last part of the path is not resolved: a link there may lead to another run's file.
    name = os.path.join(os.path.realpath(run_dir.root), run_dir.presence.name)  # noqa: PTH118 - compared as text
    # Processes come and go, and some are not ours.
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()) in {name, f"{name} (deleted)"}:
                    return True
    return False


def move_presence_aside(run_dir: RunDir) -> None:
    """Rename what is in the file's place, if it cannot be locked and no process has the file open.

    Call it once the processes of the run have been killed: otherwise their end could never be detected.

    Raises:
        OSError: it cannot be renamed.
    """
    try:
        is_any_process_present(run_dir)
    except OSError:
        if not list_present_processes(run_dir):
            run_dir.presence.rename(run_dir.presence.with_name(f"presence.refused-{time.time_ns()}"))
