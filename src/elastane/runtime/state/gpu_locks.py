"""Which worker has which GPU of this machine, by locks that end with the process that holds them."""

import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from elastane.api.run_as import GPU_CLAIMS

OPENING = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Others may write where the files are: a link is not followed, a pipe not waited for."""

_held: list[int] = []
"""Descriptors whose locks are this process's, for as long as it lives."""

logger = logging.getLogger(__name__)


def find_lock_directory() -> Path:
    """Return where this process claims: with the jobs of all users if a controller says so, else by itself.

    Jobs of one cluster may run as different users and share the machine's GPUs.
    """
    shared = os.environ.get(GPU_CLAIMS)
    return Path(shared) if shared else Path(tempfile.gettempdir()) / f"elastane-gpus-{os.getuid()}"


def lock_gpu(names: Sequence[str], worker: int, place: Path) -> str:
    """Claim one GPU for this process among all runs and jobs of this machine: a free one if there is one.

    Where there is none, or where nobody can claim any, workers share in turn.

    Args:
        names: of the GPUs, at least one.
        worker: number of the worker, where its search begins.
        place: folder of the claims; made if it is not there.
    """
    turn = names[worker % len(names)]
    try:
        folder = _open_folder(place)
    except OSError as error:
        # A stranger who took the name first must not keep this user's workers from their GPUs.
        logger.warning("cannot claim a GPU in %s (%s); this worker shares GPU %s", place, error, turn)
        return turn
    try:
        for at in range(len(names)):
            name = names[(worker + at) % len(names)]
            if _lock_file(name.replace("/", "_"), folder):
                return name
        return turn
    finally:
        os.close(folder)


def _open_folder(place: Path) -> int:
    """Open the folder of the claims, if nobody else can have prepared it for this user.

    Raises:
        OSError: it cannot be made or opened, or another user could change what is in it.
    """
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(folder)
    is_private = found.st_uid == os.getuid() and not found.st_mode & 0o022
    # Root makes the one that several users share; there nobody removes another's files.
    is_shared = found.st_uid == 0 and bool(found.st_mode & stat.S_ISVTX)
    if not is_private and not is_shared:
        os.close(folder)
        raise PermissionError(f"user {found.st_uid} or others can change it, mode {found.st_mode & 0o7777:o}")
    return folder


def _lock_file(name: str, folder: int) -> bool:
    try:
        descriptor = _open_file(name, folder)
    except OSError:
        # Whatever is there in its place cannot be locked, and says nothing about the GPU.
        return False
    try:
        # A record lock is the process's alone: what it forks does not keep it.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    _held.append(descriptor)
    return True


def _open_file(name: str, folder: int) -> int:
    """Open the file of a GPU, which any user of the folder may lock.

    Raises:
        OSError: it cannot be made or opened.
    """
    with suppress(FileExistsError):
        # Not in one call with O_CREAT: the kernel refuses it for others' files in a folder open to all.
        descriptor = os.open(name, OPENING | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        if os.fstat(folder).st_mode & stat.S_ISVTX:
            os.fchmod(descriptor, 0o666)
        return descriptor
    descriptor = os.open(name, OPENING, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{name} is not a file")
    return descriptor
