"""A device slower than this machine's cores, so that ten of them fit on two.

A microbatch takes at least a given time; the worker sleeps after its computation. Everything else is real:
the processes, the sums, the messages, the files.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ticks import TickWriter

MICROBATCH_S = "PILOT_MICROBATCH_S"
TICKS = "PILOT_TICKS"


class SlowDevice:
    """The device of one worker, from its environment; without one, full speed and no counts."""

    def __init__(self) -> None:
        self._microbatch_s = float(os.environ.get(MICROBATCH_S, "0"))
        self._ticks = TickWriter(Path(os.environ[TICKS])) if TICKS in os.environ else None

    @contextmanager
    def computing(self, step: int) -> Iterator[None]:
        """Slow down one microbatch of this step and record it, even if its step does not commit."""
        begun = time.monotonic()
        if self._ticks is not None:
            self._ticks.record_begin(step)
        yield
        time.sleep(max(0.0, begun + self._microbatch_s - time.monotonic()))
