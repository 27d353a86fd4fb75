"""A worker's notice: a signal that announces its end. It withstands the signal and reports it.

If all processes of the run get the signal, the agent acts on it, and the coordinator hears of it from there.
So a worker waits a moment before it reports its own.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType

from elastane.run.nouns.notices import NOTICES, restore_in_children

WAIT_S = 1.0

_signal = ""
_report: Callable[[], None] | None = None


def take_notices() -> None:
    """Take notices from now on; processes that this one forks, such as loaders, die of them as usual."""
    for number in NOTICES:
        signal.signal(number, _handle)
    restore_in_children(_handle)


def report_notices(report: Callable[[], None]) -> None:
    """Call a function once this worker reports a notice."""
    global _report  # noqa: PLW0603 - a process is one worker
    _report = report
    if _signal:
        report()


def get_notice() -> str:
    """Return the signal that this worker reports, such as SIGTERM; empty: none."""
    return _signal


def _handle(number: int, _frame: FrameType | None) -> None:
    timer = threading.Timer(WAIT_S, _record, (signal.Signals(number).name,))
    timer.daemon = True
    timer.start()


def _record(name: str) -> None:
    global _signal  # noqa: PLW0603 - see above
    _signal = _signal or name
    if _report is not None:
        _report()
