"""The clock of the coordinator's judgements: it counts only the time in which this process could listen."""

import time
from collections.abc import Callable

LONGEST_GAP_S = 0.5
"""The most that two readings in sequence are apart; usually the coordinator reads its clock every 0.1 s."""


class AwakeClock:
    """Seconds since its first reading, without the time in which the process was stopped.

    A coordinator that a debugger, a hypervisor or a slow disk has stopped for a while finds all reports old.
    If it took its own pause for the silence of the others, it would exclude healthy workers. Changes of the
    wall clock do not matter either.

    Args:
        read_s: returns the seconds of a clock that never goes back.
    """

    def __init__(self, read_s: Callable[[], float] = time.monotonic) -> None:
        self._read_s = read_s
        self._last_s = read_s()
        self._awake_s = 0.0

    def read(self) -> float:
        """Return the present time in seconds; call it at least every `LONGEST_GAP_S`."""
        last_s, self._last_s = self._last_s, self._read_s()
        self._awake_s += min(self._last_s - last_s, LONGEST_GAP_S)
        return self._awake_s
