"""Access to the files of another user with no more rights than that user has.

A controller that runs as root reads run directories that belong to the users of its jobs. A job may put a
link there to a file of root, such as the operator's token. With the rights of the owner of the directory, the
kernel refuses access to that file, through any path.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_libc = ctypes.CDLL(None)
_NO_ID = -1
"""An invalid id: the kernel rejects it and returns the id that is set."""


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
