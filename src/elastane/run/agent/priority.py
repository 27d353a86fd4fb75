"""Low CPU priority for processes that are not training yet: joining workers and the standby coordinator."""

import contextlib
import multiprocessing
import os
import resource
from pathlib import Path

LOW = 10
USUAL = os.getpriority(os.PRIO_PROCESS, 0)
# getrlimit counts priorities from 20 (usual) to 40; below 20, only privileged processes may leave LOW again.
MAY_RETURN = 20


def lower(pid: int = 0) -> None:
    """Lower the priority of a process, if its usual priority can be restored later.

    Args:
        pid: a process that has a single thread so far and at most the privileges of this one; 0: this
            process.
    """
    if USUAL < LOW and _may_return():
        os.setpriority(os.PRIO_PROCESS, pid, LOW)


def restore(pid: int = 0) -> None:
    """Restore the usual priority of a process and its threads; of this process, also of its children.

    Raises:
        ProcessLookupError: there is no such process.
    """
    if os.getpriority(os.PRIO_PROCESS, pid) != LOW:
        return
    loaders = () if pid else tuple(child.pid for child in multiprocessing.active_children())
    for process in (pid or os.getpid(), *loaders):
        # On Linux a priority belongs to a thread, and a new thread takes it from the one that starts it.
        for task in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, int(task.name), USUAL)


def _may_return() -> bool:
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if soft >= MAY_RETURN - USUAL:
        return True
    # In a container, being root proves nothing. A refused attempt changes nothing.
    try:
        os.setpriority(os.PRIO_PROCESS, 0, USUAL - 1)
    except PermissionError:
        return False
    os.setpriority(os.PRIO_PROCESS, 0, USUAL)
    return True
