"""What holds secrets is for its owner: rights that others have from before are taken from them.

Nothing that Elastane makes can be written by everybody, whatever the umask.
"""

import os
import stat
from pathlib import Path

from elastane.api.errors import BadInput

OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
OF_STRANGERS = stat.S_IWGRP | stat.S_IRWXO
"""Of a folder: a group that may look into it was let in on purpose, and its files with secrets are closed."""


EVERYBODY_WRITES, OTHERS_WRITE = 0o002, 0o022


def narrow_umask() -> None:
    """Let nobody but the owner write to what this process makes, if its umask lets everybody write.

    Such a umask (000, of many containers and services) is an oversight: whoever may write to a run directory
    can replace a checkpoint or the log of a worker. Any other umask is somebody's choice, and stays.
    """
    mask = os.umask(0o077)
    os.umask(mask if mask & EVERYBODY_WRITES else mask | OTHERS_WRITE)


def restrict_permissions(path: Path, rights: int = OF_OTHERS) -> bool:
    """Takes rights to a file or folder away; whether anybody had them. One that is not there needs nothing.

    Args:
        path: of it.
        rights: bits of its mode that it must not have.

    Raises:
        BadInput: it has them, and is not this user's to close.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    if not found.st_mode & rights:
        return False
    mode = stat.S_IMODE(found.st_mode)
    # A folder with the sticky bit is there for everybody: /tmp.
    if found.st_uid != os.geteuid() or mode & stat.S_ISVTX:
        raise BadInput(
            f"{path} is open to others (mode {mode:o}), and not yours alone (owner {found.st_uid})",
            means="they could read the digests of tokens and the environment of jobs; nothing was started",
            do="name another ELASTANE_HOME or --store, or give it to the user who starts the controller",
        )
    path.chmod(mode & ~rights)
    return True
