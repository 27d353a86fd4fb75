"""The agent's connection to the current coordinator of the run."""

import asyncio
from collections.abc import Callable

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from elastane.api.control import LARGEST_MESSAGE_BYTES, AgentReport, ToAgent, decode_to_agent, encode
from elastane.api.endpoint import CoordinatorEndpoint, build_bearer_header
from elastane.api.safe_text import escape_line
from elastane.api.untrusted_data import Malformed

REPORT_EVERY_S = 1.0
RETRY_S = 0.02
RETRY_MALFORMED_S = 1.0


class ControlLink:
    """Sends a complete report on every change and once a second, and receives the coordinator's messages.

    Args:
        address: host and port.
        secret: of the run.
        report: returns the current report.
        hear: receives the messages of the coordinator.
        changed: set when there is something new to report.
        complain: receives a line for the log about each malformed message.
    """

    def __init__(
        self,
        address: tuple[str, int],
        secret: str,
        report: Callable[[], AgentReport],
        hear: Callable[[ToAgent], None],
        changed: asyncio.Event,
        *,
        complain: Callable[[str], None],
    ) -> None:
        self._uri = CoordinatorEndpoint(*address).url
        self._headers = build_bearer_header(secret)
        self._report = report
        self._hear = hear
        self._changed = changed
        self._complain = complain

    async def run(self) -> None:
        """Stay connected until cancelled; the next coordinator listens on the same socket."""
        while True:
            try:
                async with connect(
                    self._uri,
                    additional_headers=self._headers,
                    # The last message of a run contains its traceback, which may be long.
                    max_size=LARGEST_MESSAGE_BYTES,
                    proxy=None,
                    compression=None,
                    close_timeout=1,
                ) as connection:
                    await self._talk(connection)
            except (OSError, TimeoutError, WebSocketException):
                await asyncio.sleep(RETRY_S)
            except Malformed as error:
                # Connect again, to this coordinator or to its successor.
                self._complain(f"the agent does not understand the coordinator: {escape_line(str(error))}")
                await asyncio.sleep(RETRY_MALFORMED_S)

    async def _talk(self, connection: ClientConnection) -> None:
        reporting = asyncio.create_task(self._keep_reporting(connection))
        try:
            async for frame in connection:
                self._hear(decode_to_agent(frame))
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)

    async def _keep_reporting(self, connection: ClientConnection) -> None:
        while True:
            self._changed.clear()
            await connection.send(encode(self._report()), text=True)
            try:
                async with asyncio.timeout(REPORT_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                continue
