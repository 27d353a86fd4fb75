"""The authentication of connections to a run's servers: each sends one HTTP request with the run's secret.

Until then a connection has a deadline and a limit of bytes, and the number of such connections is limited. An
encrypted one counts before its TLS handshake, for which it has the same deadline once more. An error on an
unproven connection ends only that connection.
"""

import asyncio
import hmac
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from elastane.common.connections.late_handshake import LateHandshake
from elastane.common.connections.patient_listener import compute_admission_rules, make_patient_listener
from elastane.common.connections.unproven_connections import RefusalLog, UnprovenConnections
from elastane.run.connections.endpoint import build_bearer_header

DEADLINE_S = 10.0
CLOSE_S = 1.0
LARGEST_REQUEST_BYTES = 64 << 10
PATH = "/"
BACKLOG = 4096
"""Connections that may wait to be accepted. A client that the kernel turns away tries again in a second."""

logger = logging.getLogger(__name__)


class Pages(Protocol):
    """What a server answers to requests that open no WebSocket."""

    async def admit(self, authorization: str) -> Response | None:
        """Return the answer to a ticket, with the status 200 if it admits; None: it presents no ticket."""

    async def show(self, path: str, accept: str) -> Response:
        """Return a page for a client with the secret of the run, in a media type that it accepts."""


class Authenticator:
    """All connections that have not presented the secret.

    Args:
        secret: the secret of the run; every connection presents it as a bearer token.
        pages: answers tickets, and requests for anything but `PATH`; None: there are no pages.
        context: encrypts the connections; None: they stay on this machine.
    """

    def __init__(
        self, secret: str, pages: Pages | None = None, context: ssl.SSLContext | None = None
    ) -> None:
        self._pages = pages
        self._context = context
        self._unproven: UnprovenConnections[GuardedConnection | SilentConnection] = UnprovenConnections(
            compute_admission_rules()
        )
        self._refusals = RefusalLog()
        self._authorization = build_bearer_header(secret)["Authorization"].encode()

    def create_connection(self, *args: Any, **options: Any) -> "SilentConnection | LateHandshake":
        """Create a guarded connection, for ``create_connection`` of `websockets`."""
        if self._context is None:
            return SilentConnection(self, partial(GuardedConnection, self, *args, **options))
        connection = GuardedConnection(self, *args, **options)
        return LateHandshake(
            connection,
            self._context,
            arrive=connection.arrive,
            depart=partial(self.count, connection),
            handshake_s=DEADLINE_S,
            close_s=CLOSE_S,
        )

    def add(self, connection: "GuardedConnection | SilentConnection") -> None:
        """Add a new connection; close another one if there are too many."""
        self._unproven.rules = compute_admission_rules()
        descriptor = connection.transport.get_extra_info("socket").fileno()
        displaced = self._unproven.add(connection, time.monotonic(), descriptor)
        if displaced is not None:
            self.refuse(displaced, "there were too many")

    def refuse(self, connection: "GuardedConnection | SilentConnection", reason: str) -> None:
        """Close an unproven connection."""
        self.count(connection, reason)
        connection.transport.abort()

    def close_silent(self) -> None:
        """Close the connections that have not sent anything yet."""
        for connection in self._unproven:
            if isinstance(connection, SilentConnection):
                connection.transport.abort()

    def replace(self, silent: "SilentConnection", connection: "GuardedConnection") -> None:
        """Let another object serve a connection that has sent something.

        It takes the place of the first one. Strangers that send bytes would else displace a client that
        has arrived after them and has not sent its request yet.
        """
        self._unproven.replace(silent, connection)

    def count(self, connection: "GuardedConnection | SilentConnection", reason: str) -> None:
        """Count an unproven connection that is closed or closes now."""
        if connection.proven or connection.counted:
            return
        connection.counted = True
        self._unproven.discard(connection)
        if (line := self._refusals.count(reason, time.monotonic())) is not None:
            logger.warning("%s", line)

    async def authorise(self, connection: ServerConnection, request: Request) -> Response | None:
        """Accept a connection that presents the secret once; answer any other one with an error or a page.

        The time of the comparison does not depend on where the texts differ.
        """
        assert isinstance(connection, GuardedConnection), "made by `create_connection`"
        presented = request.headers.get_all("Authorization")
        # A header may contain any byte; `websockets` turns bytes beyond ASCII into surrogates.
        if len(presented) != 1 or not hmac.compare_digest(
            presented[0].encode(errors="surrogateescape"), self._authorization
        ):
            return await self._answer_ticket(connection, presented)
        self._prove(connection)
        if request.path == PATH:
            return None
        if self._pages is not None:
            return await self._pages.show(request.path, ",".join(request.headers.get_all("Accept")))
        return make_page_response(HTTPStatus.NOT_FOUND, f"this server answers at {PATH} only\n".encode())

    async def _answer_ticket(self, connection: "GuardedConnection", presented: list[str]) -> Response:
        answer = None
        if self._pages is not None and len(presented) == 1:
            answer = await self._pages.admit(presented[0])
        if answer is not None and answer.status_code == HTTPStatus.OK:
            self._prove(connection)
            return answer
        self.count(connection, "a wrong secret" if presented else "no Authorization header")
        text = "send one header, Authorization: Bearer SECRET; the secret is in RUN/secret\n"
        return answer or make_page_response(HTTPStatus.UNAUTHORIZED, text.encode())

    def _prove(self, connection: "GuardedConnection") -> None:
        connection.proven = True
        self._unproven.discard(connection)


def make_page_response(
    status: HTTPStatus, body: bytes, content_type: str = "application/octet-stream"
) -> Response:
    """Return a response after which the connection closes."""
    headers = Headers(
        [
            ("Connection", "close"),
            ("Content-Length", str(len(body))),
            ("Content-Type", content_type),
        ]
    )
    return Response(status.value, status.phrase, headers, body)


class SilentConnection(asyncio.Protocol):
    """An accepted connection that has not sent anything yet.

    A thousand of them a second must cost little, or the server has no time for clients of the run. So the
    tasks and buffers of a WebSocket connection are made only when the first bytes arrive.

    Attributes:
        transport: of the connection.
        proven: False.
        counted: its end is counted.
    """

    transport: asyncio.Transport
    proven = False

    def __init__(self, authenticator: Authenticator, make: Callable[[], "GuardedConnection"]) -> None:
        self.counted = False
        self._authenticator, self._make = authenticator, make
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "the connection is a TCP one"
        self.transport = transport
        refuse = partial(self._authenticator.refuse, self, "it sent nothing in time")
        self._deadline = asyncio.get_running_loop().call_later(DEADLINE_S, refuse)
        self._authenticator.add(self)

    def data_received(self, data: bytes) -> None:
        """Leave the connection to a WebSocket server."""
        self._end_deadline()
        connection = self._make()
        self._authenticator.replace(self, connection)
        self.transport.set_protocol(connection)
        connection.connection_made(self.transport)
        connection.data_received(data)

    def eof_received(self) -> bool | None:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        self._authenticator.count(self, "it closed, or did not finish its request in time")

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class GuardedConnection(ServerConnection):
    """A connection that must present the secret.

    Attributes:
        proven: `Authenticator.authorise` has accepted the connection.
        counted: the connection was not proven, and its end is counted.
    """

    def __init__(self, authenticator: Authenticator, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.proven = self.counted = False
        self._authenticator = authenticator
        self._received = 0

    def arrive(self, transport: asyncio.Transport) -> None:
        """Count the TCP connection, which has just been accepted; it may still have to be encrypted."""
        self.transport = transport
        self._authenticator.add(self)

    def data_received(self, data: bytes) -> None:
        if not self.proven:
            self._received += len(data)
            if self._received > LARGEST_REQUEST_BYTES:
                self._authenticator.refuse(self, f"its request has more than {LARGEST_REQUEST_BYTES} bytes")
                return
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._authenticator.count(self, "it closed, or did not finish its request in time")
        super().connection_lost(exc)


@asynccontextmanager
async def serve_authenticated(
    handle: Callable[[ServerConnection], Awaitable[None]],
    listening: socket.socket,
    secret: str,
    *,
    largest_bytes: int,
    context: ssl.SSLContext | None = None,
    pages: Pages | None = None,
) -> AsyncIterator[Server]:
    """Serve connections with the secret of a run by a WebSocket server, within the context.

    Args:
        handle: serves one connection to its end.
        listening: a socket that listens; the caller must not use this object again.
        largest_bytes: size limit of a received message.
        context: encrypts the connections; None: they stay on this machine.
        pages: what the server answers to other requests; None: an error.
    """
    logger = logging.getLogger("websockets.server")
    logger.addFilter(filter_unproven_records)
    authenticator = Authenticator(secret, pages, context)
    serving = serve(
        handle,
        sock=make_patient_listener(listening),
        # The documentation allows a factory, but the annotation does not.
        create_connection=authenticator.create_connection,  # type: ignore[arg-type]
        process_request=authenticator.authorise,
        open_timeout=DEADLINE_S,
        max_size=largest_bytes,
        logger=logger,
        close_timeout=CLOSE_S,
        compression=None,
        backlog=BACKLOG,
    )
    async with serving as server:
        try:
            yield server
        finally:
            # The server knows only those that have sent something, and may wait for the others.
            authenticator.close_silent()


def filter_unproven_records(record: logging.LogRecord) -> bool:
    """Return whether to log a record of `websockets`: False for one about an unproven connection.

    `Authenticator` counts these connections. A traceback for each would let strangers fill the disk.
    """
    try:
        return bool(getattr(getattr(record, "websocket", None), "proven", True))
    except ReferenceError:  # a weak reference to a connection that is gone
        return False
