"""Who only prepares (a worker before it joins, the next coordinator) must not slow those who train."""

import contextlib
import multiprocessing
import os
import resource
from pathlib import Path

LOW = 10
USUAL = os.getpriority(os.PRIO_PROCESS, 0)
# getrlimit counts priorities from 20 (usual) to 40; below 20 only the privileged may come back from LOW.
MAY_RETURN = 20


def lower(pid: int = 0) -> None:
    """Let a process yield to everyone else, unless there would be no way back.

    Args:
        pid: of a process that has a single thread so far and is no more privileged than this one; 0 for this
            one itself.
    """
    if USUAL < LOW and _may_return():
        os.setpriority(os.PRIO_PROCESS, pid, LOW)


def restore(pid: int = 0) -> None:
    """Back to the usual priority, with every thread started meanwhile; this process with its children, too.

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
    # Being root proves nothing in a container. Trying does, and a refusal changes nothing.
    try:
        os.setpriority(os.PRIO_PROCESS, 0, USUAL - 1)
    except PermissionError:
        return False
    os.setpriority(os.PRIO_PROCESS, 0, USUAL)
    return True
