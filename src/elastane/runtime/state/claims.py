"""Who has which GPU of this machine, by locks that end with the process that holds them."""

import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

_held: list[int] = []
"""Descriptors whose locks are this process's, for as long as it lives."""


def default_place() -> Path:
    """Where this user's processes on this machine claim."""
    return Path(tempfile.gettempdir()) / f"elastane-gpus-{os.getuid()}"


def claim(names: Sequence[str], worker: int, place: Path) -> str:
    """One GPU for this process, of all runs and jobs of this machine: a free one if there is one.

    Where there is none, workers share in turn.

    Args:
        names: of the GPUs, at least one.
        worker: number of the worker, where its search begins.
        place: folder of the claims; made if it is not there.
    """
    place.mkdir(mode=0o700, exist_ok=True)
    for at in range(len(names)):
        name = names[(worker + at) % len(names)]
        if _claimed(place / name.replace("/", "_")):
            return name
    return names[worker % len(names)]


def _claimed(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # A record lock is the process's alone: what it forks does not keep it.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    _held.append(descriptor)
    return True
