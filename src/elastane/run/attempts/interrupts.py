"""The signals for a run, or for the part of a machine in it: to stop at the next commit, or end at once."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from elastane.run.nouns.notices import NOTICES

WATCHED = (signal.SIGINT, *NOTICES)


class Interrupts:
    """The signals of this process since its run began, over all attempts of the run.

    A notice, or Ctrl-C, stops the run at its next commit. Repeated notices mean no more than the first one:
    schedulers repeat them. Only a second Ctrl-C ends all processes at once.

    Attributes:
        stopping: the signal that stops the run, such as SIGTERM; empty: none has.
        killed: a second Ctrl-C has come.
    """

    def __init__(self) -> None:
        self.stopping, self.killed = "", False
        self._ctrl_c = 0
        self._stop: Callable[[str], None] | None = None
        self._kill: Callable[[], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def guide(self, stop: Callable[[str], None], kill: Callable[[], None]) -> Iterator[None]:
        """Act on signals in the running event loop until the context ends.

        Args:
            stop: called with the signal, once, and again for the first Ctrl-C after a notice.
            kill: called for the second Ctrl-C.
        """
        self._loop, self._stop, self._kill = asyncio.get_running_loop(), stop, kill
        if self.stopping:
            stop(self.stopping)
        try:
            yield
        finally:
            self._loop = None

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal; Python calls this in the main thread."""
        if number == signal.SIGHUP:
            _leave_terminal()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._act, signal.Signals(number))
        elif number == signal.SIGINT:
            # No attempt runs now: this ends what the command does before or after it.
            raise KeyboardInterrupt
        else:
            self.stopping = self.stopping or signal.Signals(number).name

    def _act(self, number: signal.Signals) -> None:
        if number == signal.SIGINT:
            self._ctrl_c += 1
        if self._stop is None or self._kill is None:
            return
        if self._ctrl_c > 1:
            self.killed = True
            self._kill()
        elif number == signal.SIGINT or not self.stopping:
            self.stopping = number.name
            self._stop(number.name)


@contextmanager
def watch_signals() -> Iterator[Interrupts]:
    """Handle the signals of this process until the context ends; a signal that is ignored stays so."""
    interrupts = Interrupts()
    before = {
        number: signal.getsignal(number)
        for number in WATCHED
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, interrupts.handle)
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def describe_signal(name: str) -> str:
    """Return the beginning of the message about a signal: its name, unless the user has typed Ctrl-C."""
    return "" if name == "SIGINT" else f"{name}: "


def _leave_terminal() -> None:
    """Write to nowhere from now on: the terminal for messages is gone."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
