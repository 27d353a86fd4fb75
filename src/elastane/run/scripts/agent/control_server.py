"""The server that answers ``elastane ps``, ``resize``, ``drain`` and ``stop`` of an unmodified script.

It is a part of the agent, not a process of its own: the agent is the parent of everything in such a run, so a
coordinator that outlives it would have nothing to coordinate.
"""

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from elastane.common.log_lines import configure_handler
from elastane.run.connections.authentication import serve_authenticated
from elastane.run.coordinator.actions import CommandRequest
from elastane.run.coordinator.connections import Connections
from elastane.run.nouns.control import LARGEST_MESSAGE_BYTES, Answer, Ask


class ControlServer:
    """Authenticated connections, and one answer for each request.

    Args:
        secret: of the run.
        answer: carries out a request and returns the answer.
    """

    def __init__(self, secret: str, answer: Callable[[Ask], Answer]) -> None:
        self._secret = secret
        self._connections = Connections()
        self._answer = answer

    async def serve(self, listening: socket.socket) -> None:
        """Serve until cancelled."""
        async with serve_authenticated(
            self._connections.serve, listening, self._secret, largest_bytes=LARGEST_MESSAGE_BYTES
        ):
            while True:
                received = await self._connections.inbox.get()
                # Messages of workers and agents have no meaning here.
                if isinstance(received, CommandRequest):
                    answer = self._answer(received.ask)
                    if (requester := self._connections.requesters.pop(received.token, None)) is not None:
                        requester.put(answer)


@contextmanager
def log_connections_to(path: Path) -> Iterator[None]:
    """Write warnings about connections to a file instead of the terminal."""
    handler = configure_handler(logging.FileHandler(path, delay=True))
    # On a full disk, logging itself fails; that must not end the run.
    handler.handleError = lambda record: None  # type: ignore[method-assign]  # noqa: ARG005
    loggers = [logging.getLogger(name) for name in ("elastane.run.coordinator", "websockets.server")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = True
        handler.close()
