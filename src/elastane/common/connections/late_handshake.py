"""TLS for a server of asyncio that counts its connections before their handshake.

With a TLS context, a server of asyncio calls its protocol only after the handshake. A stranger that never
finishes one would hold a descriptor that is not counted. So the server gets no context: its protocol is
`LateHandshake`, which counts a connection first and encrypts it then.
"""

import asyncio
import ssl
from collections.abc import Callable


class LateHandshake(asyncio.Protocol):
    """Counts an accepted connection, does its TLS handshake, and leaves it to another protocol.

    Args:
        protocol: serves the encrypted connection.
        arrive: counts the connection that was accepted, and may abort it at any time.
        depart: records why a connection has closed that did not reach the protocol.
        handshake_s: the longest time of the handshake.
        close_s: the longest time of an orderly end of TLS.
    """

    def __init__(
        self,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        *,
        arrive: Callable[[asyncio.Transport], None],
        depart: Callable[[str], None],
        handshake_s: float,
        close_s: float,
    ) -> None:
        self._protocol, self._context = protocol, context
        self._handshake_s, self._close_s = handshake_s, close_s
        self._arrive, self._depart = arrive, depart
        self._early: list[bytes] = []
        self._handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "the connection is a TCP one"
        self._arrive(transport)
        # Otherwise bytes in front of the handshake could pass for decrypted ones.
        transport.pause_reading()
        self._handshake = asyncio.create_task(self._shake_hands(transport))

    def data_received(self, data: bytes) -> None:
        """Keep what the client sent right behind its handshake: it arrives before the task goes on."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._depart(f"it closed: {exc}")

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        if transport.is_closing():  # another connection has displaced it
            return
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=self._close_s,
            )
        except OSError as error:
            self._depart(f"its TLS handshake failed: {error}")
            return
        if encrypted is None:  # the transport was aborted meanwhile
            self._depart("it closed in its TLS handshake")
            return
        encrypted.set_protocol(self._protocol)
        self._protocol.connection_made(encrypted)
        for data in self._early:
            self._protocol.data_received(data)
