"""Connections on which requests have to arrive.

Whoever connects and asks nothing, or sends a request a byte at a time, keeps a connection and a file
descriptor of the controller; with enough of them nobody else is served. No token is needed for that.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

ARRIVE_S = 30.0
"""From the first byte of a request to its last; the largest one needs 140 kB a second."""


class Arriving(H11Protocol):
    """Closes a connection whose request has not arrived in time; what is answered for long, may be."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        self._expect()
        super().data_received(data)
        if self.conn.their_state not in {h11.IDLE, h11.SEND_BODY}:
            self._arrived()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(ARRIVE_S, self.transport.close)

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
