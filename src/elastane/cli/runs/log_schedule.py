"""Schedule of the progress lines in a log: frequent at first, then more and more rare.

People read the log of a run of ten days too, and services that collect logs charge for each line.
"""

import msgspec

INTERVALS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds between two lines; the last one repeats. Some CI services end a job after ten silent minutes."""


class LogSchedule(msgspec.Struct, frozen=True):
    """The number of lines so far, and the time of the next one.

    Args:
        lines: printed so far.
        due_s: time of the next line, on a monotonic clock; the first one is due at once.
    """

    lines: int = 0
    due_s: float = 0.0

    def after_line(self, now_s: float) -> "LogSchedule":
        """Return the schedule after a line was printed.

        Args:
            now_s: monotonic clock.
        """
        interval_s = INTERVALS_S[min(self.lines, len(INTERVALS_S) - 1)]
        return LogSchedule(self.lines + 1, now_s + interval_s)
