"""How a process opens a connection to the coordinator of a run.

Workers and single requests use threads; the agent and the engines use asyncio. Both functions present the
run's secret, limit the size of received messages, and use neither a proxy nor compression: the coordinator is
on the same machine or near. If the endpoint has a certificate, they trust this one only.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

import websockets.sync.client

from elastane.run.connections.endpoint import CoordinatorEndpoint, build_bearer_header
from elastane.run.connections.run_certificate import build_client_context
from elastane.run.nouns.silence_limits import SilenceLimits

if TYPE_CHECKING:
    import websockets.asyncio.client
    from websockets.sync.client import ClientConnection

    from elastane.run.connections.threaded_connection import ThreadedConnection

LOOK_EVERY_S = 0.1
PINGS_S = 20.0, 20.0
"""How often a connection on one machine asks for an answer, and how long it waits for one."""
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

    Raises:
        OSError: no coordinator listens there, or it did not answer in time.
        WebSocketException: the coordinator refused the connection.
    """
    return open_connection_in_charge(
        lambda: endpoint,
        secret,
        largest_bytes=largest_bytes,
        timeout_s=timeout_s,
        pings_between_machines_s=SilenceLimits().pings_s,
    )


def open_connection_in_charge(
    find_endpoint: Callable[[], CoordinatorEndpoint],
    secret: str,
    *,
    largest_bytes: int,
    timeout_s: float,
    pings_between_machines_s: tuple[float, float],
) -> "ClientConnection | ThreadedConnection":
    """Open a connection for threads to the coordinator that is in charge; use it as a context.

    Args:
        pings_between_machines_s: as in `open_async_connection`, if the coordinator may be on another machine.

    Raises:
        OSError: no coordinator listens there, it did not answer in time, or another one is in charge by now.
        WebSocketException: the coordinator refused the connection.
    """
    endpoint = find_endpoint()
    if endpoint.certificate:
        from elastane.run.connections.threaded_connection import ThreadedConnection

        return ThreadedConnection(
            lambda: connect_in_charge(
                find_endpoint,
                secret,
                largest_bytes=largest_bytes,
                timeout_s=timeout_s,
                pings_between_machines_s=pings_between_machines_s,
            )
        )
    options = _build_options(endpoint, secret, largest_bytes)
    return websockets.sync.client.connect(endpoint.url, open_timeout=timeout_s, **options)


async def connect_in_charge(
    find_endpoint: Callable[[], CoordinatorEndpoint],
    secret: str,
    *,
    largest_bytes: int,
    timeout_s: float | None = 10.0,
    pings_between_machines_s: tuple[float, float],
) -> "websockets.asyncio.client.ClientConnection":
    """Connect to the coordinator that is in charge, with asyncio.

    The machine of the last one may be gone, and then a connection attempt lasts for its whole timeout. So it
    ends as soon as another coordinator is in charge.

    Args and errors: see `open_connection_in_charge`.
    """
    endpoint = find_endpoint()

    async def connect() -> "websockets.asyncio.client.ClientConnection":
        pings_s = pings_between_machines_s if endpoint.certificate else PINGS_S
        return await open_async_connection(
            endpoint, secret, largest_bytes=largest_bytes, timeout_s=timeout_s, pings_s=pings_s
        )

    opening = asyncio.create_task(connect())
    try:
        while not opening.done():
            await asyncio.wait((opening,), timeout=LOOK_EVERY_S)
            if not opening.done() and find_endpoint() != endpoint:
                raise ConnectionAbortedError("another coordinator is in charge by now")
        return opening.result()
    finally:
        opening.cancel()


def open_async_connection(
    endpoint: CoordinatorEndpoint,
    secret: str,
    *,
    largest_bytes: int,
    timeout_s: float | None = 10.0,
    pings_s: tuple[float, float] | None = PINGS_S,
) -> "websockets.asyncio.client.connect":
    """Return a connection for asyncio that opens when it is awaited or entered as a context.

    Args:
        timeout_s: for opening the connection; None: the caller has a timeout of its own.
        pings_s: the time between two pings, which detect a lost coordinator, and the time that each waits for
            its answer; None: send none.

    Raises:
        OSError: no coordinator listens there, or it did not answer in time.
        WebSocketException: the coordinator refused the connection.
    """
    # Commands open connections for threads only; asyncio would delay their start.
    from websockets.asyncio.client import connect

    options = _build_options(endpoint, secret, largest_bytes)
    every_s, answer_s = pings_s or (None, None)
    return connect(
        endpoint.url, open_timeout=timeout_s, ping_interval=every_s, ping_timeout=answer_s, **options
    )


def _build_options(endpoint: CoordinatorEndpoint, secret: str, largest_bytes: int) -> _Options:
    return {
        "ssl": build_client_context(endpoint.certificate) if endpoint.certificate else None,
        "additional_headers": build_bearer_header(secret),
        "max_size": largest_bytes,
        "compression": None,
        "proxy": None,
        "close_timeout": CLOSE_TIMEOUT_S,
    }
