"""Permissions of files: files with secrets belong to their owner alone.

Files that Elastane makes are never world-writable, under any umask.
"""

import os
import stat
from pathlib import Path

from elastane.common.errors import BadInput

RIGHTS_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
RIGHTS_OF_WORLD = stat.S_IWGRP | stat.S_IRWXO
"""Rights to remove from a folder: its group may read it on purpose; the files with secrets are closed."""


WORLD_WRITES, OTHERS_WRITE = 0o002, 0o022


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
