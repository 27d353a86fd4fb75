"""Questions between the agents of a run: how long ago has each of them heard the coordinator?"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Annotated

import msgspec
from websockets.asyncio.server import Server, ServerConnection
from websockets.exceptions import ConnectionClosed, WebSocketException

from elastane.api.authentication import serve_authenticated
from elastane.api.coordinator_connection import open_async_connection
from elastane.api.endpoint import CoordinatorEndpoint, read_secret
from elastane.api.membership import NodeAddress, NodeName
from elastane.api.run_certificate import load_server_context, read_certificate
from elastane.api.rundir import RunDir
from elastane.api.untrusted_data import Decoder, Malformed

ANSWER_S = 0.5
LARGEST_ANSWER_BYTES = 1024


class CoordinatorHeard(msgspec.Struct, frozen=True):
    """The answer of an agent: it heard the coordinator this many seconds ago."""

    heard_s: Annotated[float, msgspec.Meta(ge=0)]


_decode: Decoder[CoordinatorHeard] = Decoder(CoordinatorHeard, at_most_bytes=LARGEST_ANSWER_BYTES)


def answer_neighbours(
    run_dir: RunDir, listening: socket.socket, read_silence: Callable[[], float]
) -> AbstractAsyncContextManager[Server]:
    """Return a server that tells other agents how long this one has not heard the coordinator.

    Args:
        run_dir: of the run, with its certificate and its secret.
        listening: a socket that listens; the caller must not use this object again.
        read_silence: returns the seconds since the coordinator was heard.

    Raises:
        OSError: the certificate or the secret cannot be read.
    """

    async def answer(connection: ServerConnection) -> None:
        try:
            await connection.send(msgspec.json.encode(CoordinatorHeard(read_silence())), text=True)
        except ConnectionClosed:
            return

    return serve_authenticated(
        answer,
        listening,
        read_secret(run_dir),
        largest_bytes=LARGEST_ANSWER_BYTES,
        context=load_server_context(run_dir),
    )


async def ask_neighbours(run_dir: RunDir, nodes: tuple[NodeAddress, ...]) -> Mapping[NodeName, float | None]:
    """Ask other agents how many seconds ago each has heard the coordinator; None: no answer in time.

    Raises:
        OSError: the certificate or the secret cannot be read.
    """
    certificate, secret = read_certificate(run_dir), read_secret(run_dir)
    answers = await asyncio.gather(
        *(_ask(CoordinatorEndpoint(node.host, node.port, certificate), secret) for node in nodes)
    )
    return {node.name: answer for node, answer in zip(nodes, answers, strict=True)}


async def _ask(endpoint: CoordinatorEndpoint, secret: str) -> float | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            connection = await open_async_connection(
                endpoint, secret, largest_bytes=LARGEST_ANSWER_BYTES, timeout_s=None, pings_s=None
            )
            try:
                return _decode(await connection.recv()).heard_s
            finally:
                connection.transport.abort()
    except (OSError, WebSocketException, Malformed):
        return None
