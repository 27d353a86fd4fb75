"""The server that answers ``elastane ps``, ``resize``, ``drain`` and ``stop`` of an unmodified script.

It is a part of the agent, not a process of its own: the agent is the parent of everything in such a run, so a
coordinator that outlives it would have nothing to coordinate.
"""

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from websockets.asyncio.server import serve

from elastane.api.control import LARGEST_MESSAGE_BYTES, Answer, Ask
from elastane.api.log_lines import configure_handler
from elastane.api.patient_listener import make_patient_listener
from elastane.coordinator.actions import CommandRequest
from elastane.coordinator.authentication import DEADLINE_S, Authenticator, filter_unproven_records
from elastane.coordinator.connections import Connections


class ControlServer:
    """Authenticated connections, and one answer for each request.

    Args:
        secret: of the run.
        answer: carries out a request and returns the answer.
    """

    def __init__(self, secret: str, answer: Callable[[Ask], Answer]) -> None:
        self._authenticator = Authenticator(secret)
        self._connections = Connections()
        self._answer = answer

    async def serve(self, listening: socket.socket) -> None:
        """Serve until cancelled."""
        logger = logging.getLogger("websockets.server")
        logger.addFilter(filter_unproven_records)
        async with serve(
            self._connections.serve,
            sock=make_patient_listener(listening),
            # The documentation allows a factory, but the annotation does not.
            create_connection=self._authenticator.create_connection,  # type: ignore[arg-type]
            process_request=self._authenticator.authorise,
            open_timeout=DEADLINE_S,
            max_size=LARGEST_MESSAGE_BYTES,
            logger=logger,
            close_timeout=1,
            compression=None,
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
    loggers = [logging.getLogger(name) for name in ("elastane.coordinator", "websockets.server")]
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
