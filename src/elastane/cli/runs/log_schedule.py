"""When a log gets its next line about progress: often at first, then ever more rarely.

A log of a run of ten days is read by people too, and a service that collects lines charges for each.
"""

import msgspec

INTERVALS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Between two lines; the last one repeats. Some CI services end a job that is silent for ten minutes."""


class LogSchedule(msgspec.Struct, frozen=True):
    """How many lines there were, and when the next one is due.

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
