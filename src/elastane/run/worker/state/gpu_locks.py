"""Locks on the GPUs of this machine; the kernel releases them when the worker ends."""

import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import torch

from elastane.run.agent.environment import GPU_CLAIMS

OPENING = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags that do not follow links and do not block on pipes: other users may write to the folder."""

_held: list[int] = []
"""Descriptors of the locks that this process holds until it ends."""

TURN = "turn"
"""The file that a worker of several processes locks while it locks GPUs."""

logger = logging.getLogger(__name__)
VISIBLE = "CUDA_VISIBLE_DEVICES"


def find_lock_directory() -> Path:
    """Return the folder of the locks: the controller's folder for jobs of all users, else this user's.

    Jobs of one cluster may run as different users and share the machine's GPUs.
    """
    shared = os.environ.get(GPU_CLAIMS)
    return Path(shared) if shared else Path(tempfile.gettempdir()) / f"elastane-gpus-{os.getuid()}"


def lock_gpu(names: Sequence[str], worker: int, folder: Path) -> str:
    """Lock one GPU for this process, against all runs and jobs of this machine.

    If all are locked, or the folder is not usable, workers share GPUs in turn.

    Args:
        names: the names of the GPUs, at least one.
        worker: the number of the worker, at which its search begins.
        folder: the folder of the locks; created if missing.
    """
    shared_gpu = names[worker % len(names)]
    try:
        descriptor = _open_folder(folder)
    except OSError as error:
        # Another user may have created the folder first; this user's workers still need GPUs.
        logger.warning("cannot lock a GPU in %s (%s); this worker shares GPU %s", folder, error, shared_gpu)
        return shared_gpu
    try:
        for offset in range(len(names)):
            name = names[(worker + offset) % len(names)]
            if _lock_file(name.replace("/", "_"), descriptor):
                return name
        return shared_gpu
    finally:
        os.close(descriptor)


def lock_gpus(names: Sequence[str], count: int, folder: Path) -> list[str]:
    """Lock several GPUs for this process, in the order of their names, or none.

    Processes of one worker cannot share a GPU, so there is no sharing in turn.

    Args:
        names: the names of the GPUs.
        count: the number to lock.
        folder: the folder of the locks; created if missing.

    Returns:
        The names of the locked GPUs; empty: fewer were free, or the folder is not usable.
    """
    try:
        descriptor = _open_folder(folder)
        try:
            with _take_turn(descriptor):
                return _lock_all(names, count, descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        logger.warning("cannot lock GPUs in %s (%s); this worker sees none", folder, error)
        return []


@contextmanager
def _take_turn(folder: int) -> Iterator[None]:
    """Let one worker after the other lock several GPUs: two that have some each would both get none."""
    descriptor = _open_file(TURN, folder)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _lock_all(names: Sequence[str], count: int, folder: int) -> list[str]:
    before = len(_held)
    free = (name for name in names if _lock_file(name.replace("/", "_"), folder))
    locked = list(islice(free, count))
    if len(locked) == count:
        return locked
    while len(_held) > before:
        os.close(_held.pop())
    logger.warning(
        "%d of %d GPUs are free, and this worker needs %d; it sees none", len(locked), len(names), count
    )
    return []


def _open_folder(path: Path) -> int:
    """Open the folder of the locks, unless another user may have prepared its content.

    Raises:
        OSError: the folder cannot be created or opened, or another user could change its content.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    is_private = status.st_uid == os.getuid() and not status.st_mode & 0o022
    # Root creates the shared folder; its sticky bit keeps users from removing each other's files.
    is_shared = status.st_uid == 0 and bool(status.st_mode & stat.S_ISVTX)
    if not is_private and not is_shared:
        os.close(descriptor)
        raise PermissionError(
            f"user {status.st_uid} or others can change it, mode {status.st_mode & 0o7777:o}"
        )
    return descriptor


def _lock_file(name: str, folder: int) -> bool:
    try:
        descriptor = _open_file(name, folder)
    except OSError:
        # Something other than a file has this name; it says nothing about the GPU.
        return False
    try:
        # A record lock belongs to the process: forked children do not inherit it.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    _held.append(descriptor)
    return True


def _open_file(name: str, folder: int) -> int:
    """Open the file of a GPU, which any user of the folder may lock."""
    with suppress(FileExistsError):
        # O_CREAT in one call fails: in a folder open to all, the kernel refuses it for others' files.
        descriptor = os.open(name, OPENING | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        if os.fstat(folder).st_mode & stat.S_ISVTX:
            os.fchmod(descriptor, 0o666)
        return descriptor
    descriptor = os.open(name, OPENING, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{name} is not a file")
    return descriptor


# -- the assignment of GPUs of the machine to a worker ---------------------------------------------------
#
# It does not initialise CUDA: a process that has initialised CUDA cannot fork workers.


def assign_gpu(worker: int) -> None:
    """Make one GPU of the agent, which no other worker of this machine uses, visible to this process.

    Call this before CUDA is initialised. The script's ``"cuda"`` is then the GPU of this worker. If there are
    more workers than GPUs, workers share GPUs. Without a GPU nothing happens.
    """
    count = torch.cuda.device_count()
    if count:
        os.environ[VISIBLE] = lock_gpu(
            list_gpu_names(count, os.environ.get(VISIBLE)), worker, find_lock_directory()
        )


def find_gpus(processes: int) -> list[str] | None:
    """Lock as many GPUs of the agent as a worker has processes, or none; None: the machine has no GPU."""
    count = torch.cuda.device_count()
    if not count:
        return None
    return lock_gpus(list_gpu_names(count, os.environ.get(VISIBLE)), processes, find_lock_directory())


def list_gpu_names(count: int, visible: str | None) -> list[str]:
    """Return the visible GPUs as ``CUDA_VISIBLE_DEVICES`` names them.

    Args:
        count: the number of GPUs, at least 1.
        visible: the agent's value of the variable, numbers or UUIDs; None: it is not set.
    """
    names = visible.split(",") if visible else map(str, range(count))
    return [name.strip() for name in names][:count]
