"""Whether any process of a run exists: each holds a lock on one file of its directory, most by inheritance.

A worker may outlive its agent for a moment, or, stopped or stuck in a driver, for long. Its device is not
free before it has ended, and no other sign of that is as sure: the kernel gives the lock up with the process.
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
"""No run's directory is there, or none any more."""
PATIENCE_S = 1.0
RETRY_S = 0.01


def hold_presence(run_dir: RunDir) -> int:
    """Take part in the lock, with all who are forked from now on or inherit the descriptor.

    Returns:
        The descriptor; to be kept open.

    Raises:
        OSError: the file cannot be opened, or another process keeps the lock for itself.
    """
    descriptor = _open_presence_file(run_dir.presence, os.O_CREAT)
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            # Whoever asks holds the lock for a moment. A process of the job that holds it alone for longer
            # must not stop the controller.
            if not isinstance(error, BlockingIOError) or time.monotonic() > give_up:
                os.close(descriptor)
                raise
            time.sleep(RETRY_S)
        else:
            return descriptor


def is_any_process_present(run_dir: RunDir) -> bool:
    """Whether some process holds the lock. Two who ask at once may take each other for one.

    Raises:
        OSError: nobody can tell.
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
    """Open the file, if it is one. A job may have put a link to another run's file there, or a pipe.

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
    """Whether this process holds it, also if the file has been removed or replaced meanwhile."""
    # The last part of the path is not resolved: a link there would name a file of somebody else.
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

    Only for whoever has ended the run's processes: else nobody could ever see that they are gone.

    Raises:
        OSError: it cannot be renamed.
    """
    try:
        is_any_process_present(run_dir)
    except OSError:
        if not list_present_processes(run_dir):
            run_dir.presence.rename(run_dir.presence.with_name(f"presence.refused-{time.time_ns()}"))
