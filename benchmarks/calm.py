"""Undisturbed steps of a contestant, before a change."""

from collections.abc import Callable
from statistics import median

import ticks
from processes import wait_until

POLL_S = 0.1


def wait_for_calm(
    read_steps: Callable[[], list[ticks.Tick]], workers: int, steps: int, timeout_s: float = 120.0
) -> float:
    """Wait for undisturbed steps of this many workers; return the usual one, in seconds.

    Args:
        read_steps: returns the finished steps, with the numbers of their workers.
        workers: of each undisturbed step.
        steps: how many to wait for.
        timeout_s: how long to wait.

    Raises:
        TimeoutError: they did not come.
    """
    before = len(read_steps())

    def find_durations() -> list[float]:
        new = [tick for tick in read_steps()[before:] if tick.workers == workers]
        own = ticks.select_process(new[-1].pid, new) if new else []
        return list(ticks.compute_durations_s(own).values())

    wait_until(lambda: len(find_durations()) >= steps, "undisturbed steps", timeout_s, POLL_S)
    return median(find_durations())
