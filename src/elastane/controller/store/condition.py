"""What is wrong with a controller now, since when, and whether what is stored may still be used.

Each check has a name and at most one problem at a time. A problem is logged when it begins, when its words
change and when it ends; `GET /v1/health` lists those that last.
"""

import logging
import threading
import time
from collections.abc import Callable

from elastane.api.health import Check, HealthProblem

UNUSABLE: frozenset[Check] = frozenset({"file", "integrity", "age"})
"""While one of these fails, nothing is read from the store and nothing is written to it: what it holds may be
false, or another process may read something else in the file of that name."""
NO_ANSWER = "the store does not answer"

logger = logging.getLogger(__name__)


class Condition:
    """The problems that last, of one controller; safe to use from all threads.

    Args:
        where: the store, without its password; only the log names it.
        clock: seconds since 1970.
    """

    def __init__(self, where: str, clock: Callable[[], float] = time.time) -> None:
        self._where = where
        self._clock = clock
        self._lock = threading.Lock()
        self._problems: dict[Check, HealthProblem] = {}

    def report(self, check: Check, what: str, do: str, *, detail: str = "", log: bool = True) -> None:
        """Record that a check fails.

        Args:
            check: which.
            what: happened, in words for everybody: no paths, nothing of what is stored.
            do: what an operator can do about it.
            detail: for the log only.
            log: it; else whoever reports it does.
        """
        with self._lock:
            known = self._problems.get(check)
            if known is not None and known.what == what:
                return
            since_s = self._clock() if known is None else known.since_s
            self._problems[check] = HealthProblem(check=check, what=what, do=do, since_s=since_s)
        if log:
            logger.error("%s: %s%s; do: %s", self._where, what, f" ({detail})" if detail else "", do)

    def clear(self, check: Check, *, log: bool = True) -> None:
        """Record that a check passes; ``log`` it, unless whoever clears it does."""
        # Nearly always there is nothing to clear, and every turn asks.
        if check not in self._problems:
            return
        with self._lock:
            problem = self._problems.pop(check, None)
        if problem is not None and log:
            lasted_s = self._clock() - problem.since_s
            logger.info("%s: over after %.0f s: %s", self._where, lasted_s, problem.what)

    def has(self, check: Check) -> bool:
        return check in self._problems

    def problems(self) -> tuple[HealthProblem, ...]:
        """Return all problems, oldest first."""
        with self._lock:
            return tuple(sorted(self._problems.values(), key=lambda one: one.since_s))

    def unusable(self) -> HealthProblem | None:
        """Return the oldest problem because of which the store must not be used; None: it may be used."""
        if not self._problems:
            return None
        return next((one for one in self.problems() if one.check in UNUSABLE), None)
