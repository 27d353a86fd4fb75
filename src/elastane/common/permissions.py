"""Permissions of files, and access to the files of another user with no more rights than that user has.

Files with secrets belong to their owner alone. Files that Elastane makes are never world-writable, under any
umask.

A controller that runs as root reads run directories that belong to the users of its jobs. A job may put a
link there to a file of root, such as the operator's token. With the rights of the owner of the directory, the
kernel refuses access to that file, through any path.
"""

import ctypes
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elastane.common.errors import BadInput

RIGHTS_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
RIGHTS_OF_WORLD = stat.S_IWGRP | stat.S_IRWXO
"""Rights to remove from a folder: its group may read it on purpose; the files with secrets are closed."""


WORLD_WRITES, OTHERS_WRITE = 0o002, 0o022
_libc = ctypes.CDLL(None)
_NO_ID = -1
"""An invalid id: the kernel rejects it and returns the id that is set."""


def narrow_umask() -> None:
    """Let only the owner write to the files that this process makes, if its umask makes them world-writable.

    Such a umask (000, as in many containers and services) is an oversight: any user with write access to a
    run directory can replace a checkpoint or the log of a worker. Any other umask is deliberate, and stays.
    """
    mask = os.umask(0o077)
    os.umask(mask if mask & WORLD_WRITES else mask | OTHERS_WRITE)


def restrict_permissions(path: Path, rights: int = RIGHTS_OF_OTHERS) -> bool:
    """Remove permissions from a file or folder; return whether it had any of them.

    Args:
        path: of the file or folder; a missing one is left alone.
        rights: bits that its mode must not have.

    Raises:
        BadInput: the mode has such bits, and this user must not change it.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    if not found.st_mode & rights:
        return False
    mode = stat.S_IMODE(found.st_mode)
    # A folder with the sticky bit is shared on purpose: /tmp.
    if found.st_uid != os.geteuid() or mode & stat.S_ISVTX:
        raise BadInput(
            f"{path} is accessible to other users (mode {mode:o}, owner {found.st_uid})",
            means="they could read the digests of tokens and the environment of jobs; nothing was started",
            do="use another ELASTANE_HOME or --store, or give it to the user that starts the controller",
        )
    path.chmod(mode & ~rights)
    return True


@contextmanager
def use_owner_rights(directory: Path) -> Iterator[None]:
    """Give this thread the file access rights of the owner of a directory, within the context.

    Nothing changes unless this process is root and another user owns the directory. The ids are those of one
    thread (``setfsuid(2)``): never await, fork or start a thread inside the context.

    Args:
        directory: if it does not exist, nothing changes.

    Raises:
        PermissionError: the kernel did not change the ids.
    """
    owner = _find_other_owner(directory)
    if owner is None:
        yield
        return
    uid, gid = owner
    gid_before = _libc.setfsgid(gid)
    uid_before = _libc.setfsuid(uid)
    try:
        if (_libc.setfsuid(_NO_ID), _libc.setfsgid(_NO_ID)) != (uid, gid):
            raise PermissionError(f"cannot take the rights of user {uid}, who owns {directory}")
        yield
    finally:
        _libc.setfsuid(uid_before)
        _libc.setfsgid(gid_before)


def _find_other_owner(directory: Path) -> tuple[int, int] | None:
    if os.geteuid() != 0:
        return None
    try:
        found = directory.stat()
    except OSError:
        return None
    return None if found.st_uid == 0 else (found.st_uid, found.st_gid)
