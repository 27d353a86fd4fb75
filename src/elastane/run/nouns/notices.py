"""Signals that announce an end: schedulers, launchers and systemd send them to all processes of a run.

The agent alone acts on them, so that the run hears of them once: it stops at its next commit, or this machine
leaves. All other processes withstand them, because the end needs all of them. A worker that is the only
process with such a signal leaves at the next commit, and another one replaces it.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NOTICES = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""SIGTERM: scancel, systemd, Kubernetes. SIGUSR1: Slurm, SGE. SIGUSR2: SGE. SIGHUP: a closed terminal."""


def withstand_notices() -> None:
    """Make notices do nothing in this process; programs that it starts have the usual actions."""
    for number in NOTICES:
        # Programs would inherit SIG_IGN, and `terminate` would not end them.
        signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICES)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    pass


@contextmanager
def hold_notices() -> Iterator[None]:
    """Block notices in this thread; a process that begins meanwhile gets them once it withstands them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def restore_in_children(handler: object) -> None:
    """Give the usual actions to forked children of this process, for each notice that has this handler."""

    def restore() -> None:
        for number in NOTICES:
            if signal.getsignal(number) is handler:
                signal.signal(number, signal.SIG_DFL)

    os.register_at_fork(after_in_child=restore)
