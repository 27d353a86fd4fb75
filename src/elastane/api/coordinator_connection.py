"""How a process opens a connection to the coordinator of a run.

Workers and single requests use threads; the agent and the engines use asyncio. Both functions present the
run's secret, limit the size of received messages, and use neither a proxy nor compression: the coordinator is
on the same machine or near. If the endpoint has a certificate, they trust this one only.
"""

import ssl
from typing import TYPE_CHECKING, TypedDict

import websockets.sync.client

from elastane.api.endpoint import CoordinatorEndpoint, build_bearer_header
from elastane.api.run_certificate import build_client_context

if TYPE_CHECKING:
    import websockets.asyncio.client
    from websockets.sync.client import ClientConnection

    from elastane.api.threaded_connection import ThreadedConnection

CLOSE_TIMEOUT_S = 1.0
"""How long a connection waits for the answer to its close frame; a coordinator may have been killed."""


class _Options(TypedDict):
    ssl: ssl.SSLContext | None
    additional_headers: dict[str, str]
    max_size: int
    compression: None
    proxy: None
    close_timeout: float


def open_connection(
    endpoint: CoordinatorEndpoint, secret: str, *, largest_bytes: int, timeout_s: float
) -> "ClientConnection | ThreadedConnection":
    """Open a connection for threads; use it as a context, which closes it.

    Args:
        endpoint: of the coordinator.
        secret: of the run.
        largest_bytes: size limit of a received message.
        timeout_s: for opening the connection.

    Raises:
        OSError: no coordinator listens there, or it did not answer in time.
        WebSocketException: the coordinator refused the connection.
    """
    if endpoint.certificate:
        from elastane.api.threaded_connection import ThreadedConnection

        return ThreadedConnection(
            lambda: open_async_connection(endpoint, secret, largest_bytes=largest_bytes, timeout_s=timeout_s)
        )
    options = _build_options(endpoint, secret, largest_bytes)
    return websockets.sync.client.connect(endpoint.url, open_timeout=timeout_s, **options)


def open_async_connection(
    endpoint: CoordinatorEndpoint,
    secret: str,
    *,
    largest_bytes: int,
    timeout_s: float | None = 10.0,
    ping_interval_s: float | None = 20.0,
) -> "websockets.asyncio.client.connect":
    """Return a connection for asyncio that opens when it is awaited or entered as a context.

    Args:
        endpoint: of the coordinator.
        secret: of the run.
        largest_bytes: size limit of a received message.
        timeout_s: for opening the connection; None: the caller has a timeout of its own.
        ping_interval_s: time between two pings, which detect a lost coordinator; None: send none.

    Raises:
        OSError: no coordinator listens there, or it did not answer in time.
        WebSocketException: the coordinator refused the connection.
    """
    # Commands open connections for threads only; asyncio would delay their start.
    from websockets.asyncio.client import connect

    options = _build_options(endpoint, secret, largest_bytes)
    return connect(endpoint.url, open_timeout=timeout_s, ping_interval=ping_interval_s, **options)


def _build_options(endpoint: CoordinatorEndpoint, secret: str, largest_bytes: int) -> _Options:
    return {
        "ssl": build_client_context(endpoint.certificate) if endpoint.certificate else None,
        "additional_headers": build_bearer_header(secret),
        "max_size": largest_bytes,
        "compression": None,
        "proxy": None,
        "close_timeout": CLOSE_TIMEOUT_S,
    }
