"""Deadlines for requests on connections.

A client that sends nothing, or one byte at a time, occupies a connection and a file descriptor, and needs no
token for that. With enough such connections, no other client could be served. So a request has a deadline.
The endpoint of a large body may extend it once the sender has proven itself.
When too many connections wait for a request, the oldest of these is closed. A TLS handshake is a part of the
wait for the first request.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from elastane.cluster.controller.rest.problems import make_problem
from elastane.common.connections.late_handshake import LateHandshake
from elastane.common.connections.unproven_connections import AdmissionRules, UnprovenConnections

ARRIVE_S = 30.0
"""Time from the first byte of a request to its last; the largest request needs 140 kB per second."""


MOST_WAITING = 4096


def build_waiting_rules(descriptors: int) -> AdmissionRules:
    """Return how many connections may wait for a request, for a process with this many descriptors.

    The last of them remain for the store, the jobs' processes and the requests that are being answered.
    """
    return AdmissionRules(
        most=min(max(descriptors // 2, 8), MOST_WAITING),
        deadline_s=ARRIVE_S,
        least_s=0.0,
        descriptor_ceiling=descriptors - min(max(descriptors // 4, 8), 256),
    )


def build_protocol(
    rules: AdmissionRules, context: ssl.SSLContext | None = None
) -> Callable[..., asyncio.Protocol]:
    """Build the protocol of one server, which counts all of its connections together.

    Args:
        rules: for the connections that wait for a request.
        context: encrypts the connections; None: they stay on this machine.
    """

    class ServerProtocol(DeadlineProtocol):
        waiting = UnprovenConnections(rules)

    if context is None:
        return ServerProtocol

    def create_encrypted(**options: Any) -> LateHandshake:
        connection = ServerProtocol(**options)
        return LateHandshake(
            connection,
            context,
            arrive=connection.arrive,
            depart=connection.depart,
            handshake_s=ARRIVE_S,
            close_s=ARRIVE_S,
        )

    return create_encrypted


class DeadlineProtocol(H11Protocol):
    """A protocol that closes a connection if its request has not arrived in time. Answers may take longer.

    Attributes:
        waiting: all connections on which no request is being answered.
    """

    waiting: "UnprovenConnections[DeadlineProtocol]"
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if transport.get_extra_info("sslcontext") is None:
            self.arrive(transport)

    def arrive(self, transport: asyncio.Transport) -> None:
        """Count the TCP connection, which has just been accepted; it may still have to be encrypted."""
        self.transport = transport
        self._start_deadline()
        self._count_waiting()

    def depart(self, _reason: str) -> None:
        """Forget a connection after its handshake has failed."""
        self._stop_deadline()

    def data_received(self, data: bytes) -> None:
        self._start_deadline()
        super().data_received(data)
        if self.scope is not None:
            # The task that answers the request has not begun.
            self.scope["state"]["allow_time"] = self._allow_time
        if self.conn.their_state not in {h11.IDLE, h11.SEND_BODY}:
            self._stop_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and self._late is not None:
            # The rest of the body is not wanted.
            self._stop_deadline()
            self._start_deadline()
        if self.conn.their_state in {h11.IDLE, h11.SEND_BODY}:  # otherwise the next request is here already
            self._count_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Send a problem that says why the received bytes are not a request."""
        refusal = make_problem(
            HTTPStatus.BAD_REQUEST,
            msg.rstrip("."),
            means="nothing was done: the controller cannot read the request",
            do="send HTTP/1.1, with headers of at most 64 KiB",
        )
        body = msgspec.json.encode(refusal)
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        parts = (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        # If an answer has begun, another one cannot follow.
        with suppress(h11.LocalProtocolError):
            for part in parts:
                self.transport.write(self.conn.send(part) or b"")
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Write nothing: the application answers, and clients without a token must not fill the log."""

    def _count_waiting(self) -> None:
        if self.transport.is_closing():
            return
        descriptor = self.transport.get_extra_info("socket").fileno()
        oldest = self.waiting.add(self, time.monotonic(), descriptor)
        if oldest is not None:
            oldest.transport.abort()

    def _close(self) -> None:
        self.transport.close()

    def _allow_time(self, seconds: float) -> None:
        """Give the body that is arriving more time. Its connection does not count as waiting any more."""
        if self._late is not None:
            self._stop_deadline()
            self._late = self.loop.call_later(seconds, self._close)

    def _start_deadline(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(ARRIVE_S, self._close)

    def _stop_deadline(self) -> None:
        self.waiting.discard(self)
        if self._late is not None:
            self._late.cancel()
            self._late = None
