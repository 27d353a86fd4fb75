"""Bounds on connections that have not authenticated, or that wait for an event.

Every process on the machine can connect to a listening socket. Until a connection has proved that it knows a
secret, it costs a descriptor and some memory. A server therefore limits how many such connections it holds,
and for how long. When there are too many, it closes the oldest one: a peer of the run authenticates within
milliseconds and tries again if necessary, so a flood of other connections evicts only itself.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from elastane.common.safe_text import escape_line

T = TypeVar("T")

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Error numbers of `OSError` that mean that this process, or the machine, has run out of a resource."""

REPORT_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """How many unproven connections a server holds, and for how long.

    Args:
        most: connections at a time, at least 1.
        deadline_s: seconds after which an unproven connection is closed.
        least_s: seconds that every connection gets, even if there are ``most`` of them.
        descriptor_ceiling: a connection with a file descriptor of this number or a higher one stays only if
            an older unproven one is closed; the higher numbers remain free for the process itself.
    """

    most: int
    deadline_s: float
    least_s: float
    descriptor_ceiling: int

    @classmethod
    def from_descriptor_limit(cls, descriptors: int) -> "AdmissionRules":
        """Return the rules for a process that may have this many descriptors (``RLIMIT_NOFILE``).

        Unproven connections take at most an eighth of them and leave the last eighth free.
        """
        return cls(
            most=min(max(descriptors // 8, 8), 256),
            deadline_s=10.0,
            least_s=0.05,
            descriptor_ceiling=descriptors - min(max(descriptors // 8, 8), 64),
        )


class UnprovenConnections(Generic[T]):
    """The unproven connections of one server, by arrival; ``rules`` may be replaced at any time."""

    def __init__(self, rules: AdmissionRules) -> None:
        self.rules = rules
        self._since: dict[T, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._since))

    def add(self, connection: T, now_s: float, descriptor: int) -> T | None:
        """Add a connection that has just arrived; return the one that must be closed in its place, if any."""
        crowded = len(self) >= self.rules.most or descriptor >= self.rules.descriptor_ceiling
        oldest = self.oldest if crowded else None
        if oldest is not None:
            self.discard(oldest)
        self._since[connection] = now_s
        return oldest

    def replace(self, connection: T, successor: T) -> None:
        """Let another object stand for a connection, which stays as old as it is."""
        self._since = {successor if one is connection else one: s for one, s in self._since.items()}

    def discard(self, connection: T) -> None:
        """Forget a connection: it has proved itself, or it is closed."""
        self._since.pop(connection, None)

    @property
    def oldest(self) -> T | None:
        """The oldest unproven connection; None: there is none."""
        return next(iter(self._since), None)

    def compute_opening_s(self) -> float:
        """Return the time from which another connection may be accepted; 0: now."""
        return 0.0 if len(self) < self.rules.most else self.compute_yield_s()

    def compute_yield_s(self) -> float:
        """Return when the oldest connection may be closed in favour of another one; 0: there is none."""
        oldest = next(iter(self._since.values()), None)
        return 0.0 if oldest is None else oldest + self.rules.least_s

    def compute_expiry_s(self) -> float | None:
        """Return when the oldest connection must be closed; None: there is none."""
        oldest = next(iter(self._since.values()), None)
        return None if oldest is None else oldest + self.rules.deadline_s

    def list_expired(self, now_s: float) -> tuple[T, ...]:
        """Return the connections that have exceeded their deadline, oldest first."""
        limit = now_s - self.rules.deadline_s
        return tuple(connection for connection, since in self._since.items() if since <= limit)


class RefusalLog:
    """Counts refused connections and phrases a log line about them, at most one a minute.

    A client that is refused a million times must not fill the disk with a million lines.
    """

    def __init__(self) -> None:
        self._count = 0
        self._reported_s: float | None = None

    def count(self, reason: str, now_s: float) -> str | None:
        """Count one refusal; return the log line that is due now, or None.

        Args:
            reason: why this connection was refused; may contain bytes that the client sent.
            now_s: monotonic seconds.
        """
        self._count += 1
        if self._reported_s is not None and now_s - self._reported_s < REPORT_EVERY_S:
            return None
        since = "" if self._reported_s is None else f"; {self._count} since the last such line"
        self._count, self._reported_s = 0, now_s
        return f"closed a connection that did not prove the run's secret ({escape_line(reason, 200)}){since}"
