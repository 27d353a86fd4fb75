"""The current problems of a controller, since when they last, and whether its store may still be used.

Each check has a name and at most one problem at a time. A problem is logged when it begins, when its text
changes and when it ends. `GET /v1/health` lists the current problems.
"""

import logging
import threading
import time
from collections.abc import Callable

from elastane.cluster.nouns.controller import Check, HealthProblem

UNUSABLE: frozenset[Check] = frozenset({"file", "integrity", "age"})
"""While one of these checks fails, the store is neither read nor written: its content may be false, or
another process may see another file under its name."""
NO_ANSWER = "the store does not answer"

logger = logging.getLogger(__name__)


class Condition:
    """The current problems of one controller. Thread-safe.

    Args:
        where: URL of the store without its password; only the log has it.
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
            what: happened. It is public: without paths, and without content of the store.
            detail: for the log only.
            log: write the problem to the log; otherwise the caller does.
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
        """Record that a check passes. Without ``log``, the caller writes the log."""
        # Every cycle calls this, and nearly always there is nothing to clear.
        if check not in self._problems:
            return
        with self._lock:
            problem = self._problems.pop(check, None)
        if problem is not None and log:
            lasted_s = self._clock() - problem.since_s
            logger.info("%s: over after %.0f s: %s", self._where, lasted_s, problem.what)

    def has(self, check: Check) -> bool:
        return check in self._problems

    def list_problems(self) -> tuple[HealthProblem, ...]:
        """Return all problems, oldest first."""
        with self._lock:
            return tuple(sorted(self._problems.values(), key=lambda problem: problem.since_s))

    def find_unusable(self) -> HealthProblem | None:
        """Return the oldest problem that forbids the use of the store; None: the store may be used."""
        if not self._problems:
            return None
        return next((problem for problem in self.list_problems() if problem.check in UNUSABLE), None)
