"""Questions between the agents of a run: how long ago has each of them heard the coordinator?"""

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import msgspec
from websockets.asyncio.server import Server, ServerConnection
from websockets.exceptions import ConnectionClosed, WebSocketException

from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.connections.authentication import Pages, serve_authenticated
from elastane.run.connections.coordinator_connection import open_async_connection
from elastane.run.connections.endpoint import CoordinatorEndpoint, read_secret
from elastane.run.connections.run_certificate import load_server_context, read_certificate
from elastane.run.machines.succession.takeover import Answers, CoordinatorHeard
from elastane.run.nouns.membership import NodeAddress
from elastane.run.nouns.rundir import RunDir

LARGEST_ANSWER_BYTES = 1024

_decode: Decoder[CoordinatorHeard] = Decoder(CoordinatorHeard, at_most_bytes=LARGEST_ANSWER_BYTES)


def answer_neighbours(
    run_dir: RunDir,
    listening: socket.socket,
    make_answer: Callable[[], CoordinatorHeard],
    pages: Pages | None = None,
) -> AbstractAsyncContextManager[Server]:
    """Return a server that tells other agents how long this one has not heard the coordinator.

    Args:
        listening: a socket that listens; the caller must not use this object again.
        pages: for clients of the run; None: there are none.

    Raises:
        OSError: the certificate or the secret cannot be read.
    """

    async def answer(connection: ServerConnection) -> None:
        try:
            await connection.send(msgspec.json.encode(make_answer()), text=True)
        except ConnectionClosed:
            return

    return serve_authenticated(
        answer,
        listening,
        read_secret(run_dir),
        largest_bytes=LARGEST_ANSWER_BYTES,
        context=load_server_context(run_dir),
        pages=pages,
    )


class NeighbourPoll:
    """Asks the other agents of a run again and again when each last heard the coordinator."""

    def __init__(self, run_dir: RunDir, answer_s: float) -> None:
        self._run_dir, self._answer_s = run_dir, answer_s
        self._asking: asyncio.Task[Answers] | None = None
        self._answers: Answers | None = None
        self._answered_s = 0.0

    def read(self, nodes: tuple[NodeAddress, ...]) -> Answers | None:
        """Return the last answers, with the seconds until now.

        Returns:
            For each node its answer, or None if it gave none; None before all had time to answer.

        Raises:
            OSError: the certificate or the secret cannot be read.
        """
        asking = self._asking
        if asking is None or asking.done():
            self._asking = asyncio.create_task(self._ask_all(nodes))
        if asking is not None and asking.done():
            self._answers, self._answered_s = asking.result(), time.monotonic()
        if self._answers is None:
            return None
        age_s = time.monotonic() - self._answered_s
        return {
            node: None if answer is None else msgspec.structs.replace(answer, heard_s=answer.heard_s + age_s)
            for node, answer in self._answers.items()
        }

    def stop(self) -> None:
        """Forget all answers and ask no more, until `read` is called again."""
        if self._asking is not None:
            self._asking.cancel()
        self._asking = self._answers = None

    async def _ask_all(self, nodes: tuple[NodeAddress, ...]) -> Answers:
        certificate, secret = read_certificate(self._run_dir), read_secret(self._run_dir)
        answers = await asyncio.gather(
            *(
                _ask(CoordinatorEndpoint(node.host, node.port, certificate), secret, self._answer_s)
                for node in nodes
            )
        )
        return {node.name: answer for node, answer in zip(nodes, answers, strict=True)}


async def _ask(endpoint: CoordinatorEndpoint, secret: str, answer_s: float) -> CoordinatorHeard | None:
    try:
        async with asyncio.timeout(answer_s):
            connection = await open_async_connection(
                endpoint, secret, largest_bytes=LARGEST_ANSWER_BYTES, timeout_s=None, pings_s=None
            )
            try:
                return _decode(await connection.recv())
            finally:
                connection.transport.abort()
    except (OSError, WebSocketException, Malformed):
        return None
