"""Simulated time: a heap of scheduled callbacks, and the one source of random numbers."""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

Callback = Callable[[], None]


class Clock:
    """Time in seconds from 0. Callbacks of the same time run in the order of their scheduling.

    Args:
        seed: the seed of every random choice of a history.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self._heap: list[tuple[float, int, Callback]] = []
        self._count = 0

    def schedule_at(self, time: float, callback: Callback) -> None:
        self._count += 1
        heappush(self._heap, (max(time, self.now), self._count, callback))

    def schedule_after(self, delay_s: float, callback: Callback) -> None:
        self.schedule_at(self.now + delay_s, callback)

    def step(self) -> bool:
        """Run the next callback; return False if there is none."""
        if not self._heap:
            return False
        self.now, _, callback = heappop(self._heap)
        callback()
        return True
