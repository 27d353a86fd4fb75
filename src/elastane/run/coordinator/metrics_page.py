"""The page of the coordinator that Prometheus scrapes. Like every connection, it needs the run's secret."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from websockets.http11 import Response

from elastane.common.exposition import Readings, encode_readings
from elastane.common.extras import MissingExtra
from elastane.run.connections.authentication import make_page_response
from elastane.run.nouns.run_metrics import METRICS_PATH


class MetricsPage:
    """Answers requests for the metrics of a run.

    Args:
        read: returns the values of a scrape; called in the thread of the event loop.
    """

    def __init__(self, read: Callable[[], Readings]) -> None:
        self._read = read

    async def admit(self, authorization: str) -> Response | None:
        """Return None, because the coordinator knows no tickets."""
        return None

    async def show(self, path: str, accept: str) -> Response:
        """Return the metrics."""
        if path != METRICS_PATH:
            return make_page_response(HTTPStatus.NOT_FOUND, f"the only page is {METRICS_PATH}\n".encode())
        readings = self._read()
        try:
            # In a thread: the first request imports the library, and messages of workers must not wait.
            body, content_type = await asyncio.to_thread(encode_readings, readings, accept)
        except MissingExtra as error:
            return make_page_response(HTTPStatus.NOT_IMPLEMENTED, f"{error}\n".encode(), "text/plain")
        return make_page_response(HTTPStatus.OK, body, content_type)
