"""A worker that is not yet in the run starts at low priority: its imports must not slow those who train."""

import multiprocessing
import os
import resource
from pathlib import Path

LOW = 10
USUAL = os.getpriority(os.PRIO_PROCESS, 0)
# getrlimit counts priorities from 20 (usual) to 40; below 20 nobody but root may come back from LOW.
MAY_RETURN = 20


def lower() -> None:
    """Yield to everyone else, unless there would be no way back."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if USUAL < LOW and (os.geteuid() == 0 or soft >= MAY_RETURN - USUAL):
        os.setpriority(os.PRIO_PROCESS, 0, LOW)


def restore() -> None:
    """Back to the usual priority, with every thread and loader process started meanwhile."""
    if os.getpriority(os.PRIO_PROCESS, 0) != LOW:
        return
    for pid in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
        # On Linux a priority belongs to a thread, and a new thread takes it from the one that starts it.
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(task.name), USUAL)
