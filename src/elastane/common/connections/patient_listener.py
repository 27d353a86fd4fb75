"""A listening socket for asyncio that tolerates a lack of descriptors.

When accept(2) fails with EMFILE, asyncio tries again as often as the backlog is long, writes a traceback and
starts a timer each time, and repeats all of that a second later. With a backlog of 2,048 this writes
megabytes of log a second and leaves no time for other work. This socket makes one attempt a second, and one
log line a minute.

It also accepts few connections between two turns of the event loop. A flood would otherwise take all
descriptors before the loop has closed the first connections of it.
"""

import logging
import resource
import socket
import time

from elastane.common.connections.unproven_connections import EXHAUSTED, REPORT_EVERY_S, AdmissionRules

MOST_AT_ONCE = 16
RETRY_S = 1.0
"""asyncio tries to accept again after this many seconds."""
UNLIMITED = 1 << 20


class PatientListener(socket.socket):
    """A socket that accepts few connections at once, and without descriptors or memory tries once a second.

    It takes the arguments of `socket.socket`, usually ``fileno``.
    """

    _failed_s = -RETRY_S
    _accepted = 0

    def accept(self) -> tuple[socket.socket, object]:
        """Accept as `socket.socket.accept` does.

        Raises:
            BlockingIOError: no connection waits, the last attempt has just failed, or `MOST_AT_ONCE` were
                accepted; asyncio then calls again in its next turn.
            OSError: accept(2) failed for another reason.
        """
        if time.monotonic() - self._failed_s < RETRY_S / 2:
            raise BlockingIOError
        if self._accepted == MOST_AT_ONCE:
            self._accepted = 0
            raise BlockingIOError
        try:
            accepted = super().accept()
        except OSError as error:
            self._accepted = 0
            if error.errno in EXHAUSTED:
                self._failed_s = time.monotonic()
            raise
        self._accepted += 1
        return accepted


class _Rarely(logging.Filter):
    """Passes asyncio's message about a failed accept(2) once a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._passed_s = -REPORT_EVERY_S

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith("socket.accept() out of system resource"):
            return True
        now = time.monotonic()
        passes = now - self._passed_s >= REPORT_EVERY_S
        if passes:
            self._passed_s = now
        return passes


_rarely = _Rarely()


def make_patient_listener(listening: socket.socket) -> PatientListener:
    """Return the same listening socket as a `PatientListener`; the given object must not be used again."""
    logging.getLogger("asyncio").addFilter(_rarely)
    return PatientListener(fileno=listening.detach())


def compute_admission_rules() -> AdmissionRules:
    """Return the rules for unproven connections that follow from this process's limit of descriptors."""
    return AdmissionRules.from_descriptor_limit(read_descriptor_limit())


def read_descriptor_limit() -> int:
    """Return how many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, UNLIMITED)
