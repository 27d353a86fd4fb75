"""A single request to the coordinator of a live run."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from elastane.common.errors import ElastaneError, NoCoordinator, NoSuchRun
from elastane.common.permissions import use_owner_rights
from elastane.common.untrusted_data import Malformed
from elastane.run.connections.coordinator_connection import open_async_connection, open_connection
from elastane.run.connections.endpoint import CoordinatorEndpoint, read_endpoint, read_secret
from elastane.run.connections.run_lock import is_live
from elastane.run.nouns.control import LARGEST_ANSWER_BYTES, Answer, Ask, decode_answer, encode
from elastane.run.nouns.rundir import RunDir

RETRY_S = 0.05
REFRESH_S = 1.0


def read_address(run_dir: RunDir) -> tuple[CoordinatorEndpoint, str]:
    """Return the endpoint of the coordinator of a run, and the secret that its clients present.

    Raises:
        OSError: a file cannot be read with the rights of the owner of the directory.
        Malformed: the files are not those of a run.
    """
    with use_owner_rights(run_dir.root):
        return read_endpoint(run_dir), read_secret(run_dir)


def ask_coordinator(run_dir: RunDir, question: Ask, timeout_s: float = 10.0) -> Answer:
    """Send a request and return the answer; retry while the coordinator is being replaced.

    Args:
        question: the request; it may arrive twice, and every request is idempotent.
        timeout_s: for all retries together, in seconds.

    Raises:
        NoSuchRun: the run is not live.
        NoCoordinator: the run is live, but no coordinator answered in time.
    """
    deadline = time.monotonic() + timeout_s
    last: Exception | None = None
    refresh = _choose_refresh(run_dir)
    while (left_s := deadline - time.monotonic()) > 0:
        if not is_live(run_dir):
            raise NoSuchRun(
                f"the run in {run_dir.root} is not running",
                means="no `elastane run` holds its lock: it has ended, or was killed",
                do=f"elastane report {run_dir.root} shows how it went",
            )
        try:
            return _ask_once(run_dir, question, left_s)
        except (OSError, WebSocketException, Malformed) as error:
            last = error
            refresh()
            time.sleep(RETRY_S)
    raise NoCoordinator(
        f"the coordinator of {run_dir.root} did not answer within {timeout_s:g} s ({last})",
        means="the run is live, but its coordinator is not; training continues without it",
        do=f"read {run_dir.log('coordinator')}, and try again",
    )


def _choose_refresh(run_dir: RunDir) -> Callable[[], object]:
    """Return what brings the endpoint of another coordinator here, if its machine cannot write it here."""
    if not run_dir.is_private:
        return lambda: None
    from elastane.run.connections.kept_endpoint import KeptEndpoint

    kept = KeptEndpoint(run_dir, timeout_s=REFRESH_S)

    def refresh() -> None:
        with suppress(ElastaneError, OSError):
            kept.refresh()

    return refresh


def _ask_once(run_dir: RunDir, question: Ask, timeout_s: float) -> Answer:
    """Send a request once and return the answer; a timeout raises `TimeoutError`, which is an `OSError`."""
    endpoint, secret = read_address(run_dir)
    with open_connection(
        endpoint, secret, largest_bytes=LARGEST_ANSWER_BYTES, timeout_s=timeout_s
    ) as connection:
        connection.send(encode(question), text=True)
        return decode_answer(connection.recv(timeout=timeout_s))


class CoordinatorClient:
    """A connection that opens on the first request, and again after the coordinator was replaced."""

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
            # A file system that hangs must not hold the event loop.
            endpoint, secret = await asyncio.to_thread(read_address, self._run_dir)
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
