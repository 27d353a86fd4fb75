"""The newest parts of each page: pages with the same address, and of the same token, share them."""

import threading
import time
from collections.abc import Callable

from elastane.cluster.dashboard.rendering import PageContent, PagePart, render_parts

FRESH_S = 0.6
KEPT = 64


class DrawnPages:
    """The parts of the pages of one feed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._drawn: dict[str, tuple[int, float, tuple[PagePart, ...]]] = {}

    def draw(self, key: str, version: int, build: Callable[[], PageContent]) -> tuple[PagePart, ...]:
        """Return the parts of a page as they are now; only one of its readers draws it.

        Args:
            key: its address.
            version: of what it shows.
            build: returns the page.
        """
        with self._lock:
            if len(self._locks) > KEPT:
                self._locks.clear()
                self._drawn.clear()
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            now_s = time.monotonic()
            known = self._drawn.get(key)
            if known is not None and known[0] == version and now_s - known[1] < FRESH_S:
                return known[2]
            parts = render_parts(build())
            self._drawn[key] = (version, now_s, parts)
            return parts
