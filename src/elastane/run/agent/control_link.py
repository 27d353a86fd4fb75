"""The agent's connection to the current coordinator of the run."""

import asyncio
import time
from collections.abc import Callable

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Malformed
from elastane.run.connections.coordinator_connection import connect_in_charge
from elastane.run.connections.endpoint import CoordinatorEndpoint
from elastane.run.nouns.control import LARGEST_MESSAGE_BYTES, AgentReport, ToAgent, decode_to_agent, encode
from elastane.run.nouns.silence_limits import SilenceLimits

REPORT_EVERY_S = 1.0
"""On one machine nothing is decided by the age of a report."""
RETRY_S = 0.02
RETRY_MALFORMED_S = 1.0


class ControlLink:
    """Sends a complete report on every change and regularly, and receives the coordinator's messages.

    Args:
        find_endpoint: returns the endpoint of the present coordinator.
        changed: set when there is something new to report.
        log: receives a line about each malformed message.
        report_every_s: the time between two reports without a change.

    Attributes:
        heard_s: when the coordinator last answered, in monotonic seconds; at first the time of creation.
    """

    def __init__(
        self,
        find_endpoint: Callable[[], CoordinatorEndpoint],
        secret: str,
        report: Callable[[], AgentReport],
        handle: Callable[[ToAgent], None],
        changed: asyncio.Event,
        *,
        silence: SilenceLimits,
        log: Callable[[str], None],
        report_every_s: float = REPORT_EVERY_S,
    ) -> None:
        self._find_endpoint = find_endpoint
        self.heard_s = time.monotonic()
        self._secret = secret
        self._report = report
        self._handle = handle
        self._changed = changed
        self._pings_s = silence.pings_s
        self._log = log
        self._report_every_s = report_every_s

    @property
    def silent_s(self) -> float:
        """The seconds since the coordinator last answered."""
        return time.monotonic() - self.heard_s

    async def run(self) -> None:
        """Stay connected until cancelled, to one coordinator after the other."""
        while True:
            try:
                # The last message of a run contains its traceback, which may be long.
                async with await connect_in_charge(
                    self._find_endpoint,
                    self._secret,
                    largest_bytes=LARGEST_MESSAGE_BYTES,
                    pings_between_machines_s=self._pings_s,
                ) as connection:
                    await self._exchange_messages(connection)
            except (OSError, TimeoutError, WebSocketException):
                # Also the endpoint of a run that has just ended cannot be read.
                await asyncio.sleep(RETRY_S)
            except Malformed as error:
                # Connect again, to this coordinator or to its successor.
                self._log(f"the agent cannot decode a message of the coordinator: {escape_line(str(error))}")
                await asyncio.sleep(RETRY_MALFORMED_S)

    async def _exchange_messages(self, connection: ClientConnection) -> None:
        reporting = asyncio.create_task(self._keep_reporting(connection))
        try:
            async for frame in connection:
                self._handle(decode_to_agent(frame))
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)

    async def _keep_reporting(self, connection: ClientConnection) -> None:
        while True:
            self._changed.clear()
            await connection.send(encode(self._report()), text=True)
            asyncio.ensure_future(await connection.ping()).add_done_callback(self._hear)
            try:
                async with asyncio.timeout(self._report_every_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _hear(self, answer: asyncio.Future[float]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self.heard_s = time.monotonic()
