"""How often a process may die before starting it again makes no sense."""

import signal
from dataclasses import dataclass

MOST_DEATHS = 5


@dataclass(frozen=True, slots=True)
class Deaths:
    """When a process died lately.

    Args:
        within_s: deaths longer ago are forgotten.
        times: of the others, in seconds, oldest first.
    """

    within_s: float
    times: tuple[float, ...] = ()

    def another(self, now: float, code: int) -> "Deaths":
        """One more; SIGKILL and SIGTERM come from outside and say nothing against starting it again.

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
