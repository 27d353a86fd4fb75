"""The clock of the coordinator's judgements: it counts only the time in which this process could listen."""

import time
from collections.abc import Callable


class AwakeClock:
    """Seconds since its first reading, without the time in which the process was stopped.

    A coordinator that a debugger, a hypervisor or a slow disk has stopped for a while finds all reports old.
    If it took its own pause for the silence of the others, it would exclude healthy workers. Changes of the
    wall clock do not matter either.

    Args:
        longest_gap_s: the most that two readings in sequence count. Usually the coordinator reads its clock
            every 0.1 s.
        read_s: returns the seconds of a clock that never goes back.
    """

    def __init__(self, longest_gap_s: float, read_s: Callable[[], float] = time.monotonic) -> None:
        self._longest_gap_s, self._read_s = longest_gap_s, read_s
        self._last_s = read_s()
        self._awake_s = 0.0

    def read(self) -> float:
        """Return the present time in seconds; call it at least every `longest_gap_s`."""
        last_s, self._last_s = self._last_s, self._read_s()
        self._awake_s += min(self._last_s - last_s, self._longest_gap_s)
        return self._awake_s
