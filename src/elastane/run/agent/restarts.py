"""The limit on restarts of a process that keeps dying."""

import signal
from dataclasses import dataclass

MOST_DEATHS = 5


@dataclass(frozen=True, slots=True)
class Deaths:
    """The recent deaths of a process.

    Args:
        within_s: older deaths do not count.
        times: of the deaths that count, in seconds, oldest first.
    """

    within_s: float
    times: tuple[float, ...] = ()

    def add(self, now: float, code: int) -> "Deaths":
        """Return the deaths with one more. SIGKILL and SIGTERM come from outside and do not count.

        Args:
            now: in seconds.
            code: how it ended, negative for a signal.
        """
        if -code in (signal.SIGKILL, signal.SIGTERM):
            return self
        return Deaths(self.within_s, (*(time for time in self.times if now - time < self.within_s), now))

    @property
    def too_many(self) -> bool:
        return len(self.times) >= MOST_DEATHS
