"""A persistent connection to the coordinator of a live run, for frequent requests."""

import asyncio
from contextlib import suppress

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from elastane.common.permissions import use_owner_rights
from elastane.common.untrusted_data import Malformed
from elastane.run.connections.coordinator_connection import open_async_connection
from elastane.run.connections.endpoint import read_endpoint, read_secret
from elastane.run.nouns.control import LARGEST_ANSWER_BYTES, Answer, Ask, decode_answer, encode
from elastane.run.nouns.rundir import RunDir


class CoordinatorClient:
    """A connection that opens on the first request, and again after the coordinator was replaced.

    Args:
        run_dir: of the run.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._connection: ClientConnection | None = None
        # Answers carry no id and come in the order of the requests, so one request runs at a time.
        self._in_use = asyncio.Lock()

    async def ask(self, question: Ask, timeout_s: float) -> Answer | None:
        """Send a request once, and return the answer.

        Args:
            question: the request; it may arrive without an answer, and every request is idempotent.
            timeout_s: for connecting, sending and receiving together, in seconds.

        Returns:
            The answer; None if no coordinator answered in time.
        """
        try:
            async with asyncio.timeout(timeout_s), self._in_use:
                try:
                    return await self._send_request(question)
                except BaseException:
                    # A late answer would be taken for the answer to the next request.
                    self._drop()
                    raise
        except (OSError, WebSocketException, Malformed):
            return None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(WebSocketException, OSError):
                await connection.close()

    async def _send_request(self, question: Ask) -> Answer:
        if self._connection is None:
            with use_owner_rights(self._run_dir.root):
                endpoint, secret = read_endpoint(self._run_dir), read_secret(self._run_dir)
            # `ask` has a timeout of its own, which also detects a lost coordinator.
            self._connection = await open_async_connection(
                endpoint, secret, largest_bytes=LARGEST_ANSWER_BYTES, timeout_s=None, pings_s=None
            )
        await self._connection.send(encode(question), text=True)
        return decode_answer(await self._connection.recv())

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.transport.abort()
