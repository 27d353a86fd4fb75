"""The processes that descend from this one, also through parents that have ended."""

import ctypes
import errno
import os
import signal
from collections import defaultdict
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own.

    Emulators and sandboxes that lack this call answer as for a wrong number. There, a child that outlives its
    parent outlives the run.

    Raises:
        OSError: the kernel refuses.
    """
    try:
        _call_prctl(PR_SET_CHILD_SUBREAPER, 1)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends.

    Args:
        parent: its id, as known before the fork: it may have ended already.

    Raises:
        OSError: the kernel refuses.
    """
    _call_prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def kill_descendants() -> bool:
    """Send SIGKILL to every descendant of this process; return whether there was one."""
    found = list_descendants(os.getpid())
    for pid in found:
        # This process is the reaper of all of them, so none of these numbers is used again yet.
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def list_descendants(ancestor: int, *, without: Container[int] = ()) -> list[int]:
    """Return the ids of all processes that descend from one, parents first; zombies included.

    Args:
        without: children of the ancestor to leave out, with all that descend from them.
    """
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The parent is the second field after the name in brackets, which may contain anything.
            parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            children[int(parent)].append(int(entry.name))
    found = [pid for pid in children[ancestor] if pid not in without]
    for pid in found:
        found += children[pid]
    return found


def _call_prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
