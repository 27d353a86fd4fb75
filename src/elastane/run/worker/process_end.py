"""The end of a worker's process after its script: as a Python process ends, within a stated time.

The interpreter joins threads that are not daemons, calls the exit handlers, drops the values of the script,
and flushes files. It does not take its modules apart: that would copy every page which a worker shares with
its fork server, and Elastane's threads still run. The agent counts a worker as gone once it is here, so no
other worker and no checkpoint waits for it.
"""

import atexit
import ctypes
import faulthandler
import gc
import io
import os
import signal
import sys
import threading
import time
import weakref
from contextlib import suppress
from typing import NoReturn

from elastane.run.nouns.rundir import RunDir
from elastane.run.worker.gangs.seat import LONE_SEAT, Seat
from elastane.run.worker.heartbeat import Heartbeat
from elastane.run.worker.main_program import drop_main_program

LIBRARIES_S = 5
"""How long the exit handlers of C libraries may take: a driver may hang, and the script has ended."""
FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def disown_finalizers() -> None:
    """Leave to the fork server what it would clean up at its own end, such as its temporary folders."""
    for finalizer in tuple(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False


def end_process(files: RunDir, worker: int, code: int, longest_s: float, seat: Seat = LONE_SEAT) -> NoReturn:
    """End this process as Python ends; does not return.

    Args:
        files: the directory of the run, as its node sees it.
        worker: the number of this worker.
        code: the exit code.
        longest_s: how long it may take, in seconds; then the process ends at once.
        seat: the place of this process in its worker.
    """
    with suppress(OSError):
        Heartbeat(files.node_files.beats, worker, seat).end(code)
    limit = threading.Thread(target=_cut_off, args=(longest_s, code), name="elastane-end", daemon=True)
    try:
        limit.start()
        # Elastane's threads see their peers and the coordinator go, as they must.
        threading.excepthook = _print_unless_own
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        # From here on an interpreter runs no thread but this one.
        threading.excepthook = lambda _: None
        sys.setswitchinterval(longest_s)
        sys.excepthook = sys.__excepthook__
        drop_main_program()
        _flush_files()
        # The exit handlers of C libraries. The GIL stays held, so no thread disturbs or limits them.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIBRARIES_S)
        ctypes.PyDLL(None).exit(code)
    finally:
        os._exit(code)


def _print_unless_own(args: threading.ExceptHookArgs) -> None:
    if args.thread is None or not args.thread.name.startswith("elastane-"):
        threading.__excepthook__(args)


def _flush_files() -> None:
    """Write the buffers of all open files, wherever the script keeps them."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    # Files of the fork server are frozen, and so not among these objects.
    for found in gc.get_objects():
        if issubclass(type(found), FILES):
            with suppress(OSError, ValueError):
                found.flush()


def _cut_off(longest_s: float, code: int) -> None:
    time.sleep(longest_s)
    running = [thread.name for thread in threading.enumerate() if not thread.daemon]
    with suppress(Exception):
        sys.stderr.write(
            f"the script has ended, but its process has not within {longest_s:g} s (end_s in run.json), so "
            f"it is killed; threads that are not daemons: {', '.join(running)}. All of them are at:\n"
        )
        sys.stderr.flush()
        faulthandler.dump_traceback(file=2)
    os._exit(code)
