"""An encrypted WebSocket connection for several threads.

The connection for threads of `websockets` reads in one thread while another one writes. Over TLS the process
then crashed now and then inside OpenSSL (Python 3.11). Here one thread does both, with asyncio.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosedOK

T = TypeVar("T")
CLOSED_S = 2.0


class ThreadedConnection:
    """A connection with the methods of `websockets.sync.client.ClientConnection` that we use.

    Args:
        connect: opens the connection, in the thread of this object.

    Raises:
        OSError: nothing listens there, or it did not answer in time.
        WebSocketException: the other side refused the connection.
    """

    def __init__(self, connect: Callable[[], Awaitable[ClientConnection]]) -> None:
        async def open_() -> ClientConnection:
            return await connect()

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="elastane-tls", daemon=True)
        self._thread.start()
        try:
            self._connection = self._call(open_())
        except BaseException:
            self._stop()
            raise

    def _call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def send(self, message: bytes, *, text: bool) -> None:
        self._call(self._connection.send(message, text=text))

    def recv(self, timeout: float | None = None) -> str | bytes:
        return self._call(self._connection.recv(), timeout)

    def __iter__(self) -> Iterator[str | bytes]:
        """Yield messages until the other side has closed the connection in order."""
        while True:
            try:
                yield self.recv()
            except ConnectionClosedOK:
                return

    def close_socket(self) -> None:
        """Close the connection without waiting for the other side."""
        self._loop.call_soon_threadsafe(self._connection.transport.abort)

    def close_descriptor(self) -> None:
        """Close the descriptor in a forked process, in which this object's thread does not run."""
        os.close(self._connection.transport.get_extra_info("socket").fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._call(self._connection.close(), CLOSED_S)
        except (TimeoutError, OSError):
            self.close_socket()
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSED_S)
        if not self._thread.is_alive():
            self._loop.close()
