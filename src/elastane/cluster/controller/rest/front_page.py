"""The first page of the API's address, for people that type it into a browser."""

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, RedirectResponse, Response

from elastane.cluster.client.context import find_dashboard_url, read_running

router = APIRouter()

WORDS = """\
This is the API of an Elastane cluster.

No dashboard is known here. Start one:

    elastane dashboard

or, with the controller: elastane up --dashboard

Read and try the API at /docs; its description is at /v1/openapi.json.
"""


@router.get("/", include_in_schema=False)
def get_front_page() -> Response:
    """Send the browser to the dashboard of this cluster, or say how to start it."""
    # The address comes from files of the controller's user, never from the request.
    running = read_running()
    url = "" if running is None else find_dashboard_url(running.url)
    return RedirectResponse(url, 303) if url else PlainTextResponse(WORDS)
