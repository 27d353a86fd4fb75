"""The pages at the address of the API for people: the first one, and one to read the API and try it.

The second is Swagger UI, from a package that brings its files. Nothing comes from another server, and it runs
no script but these files.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse, PlainTextResponse, RedirectResponse

from elastane.cluster.client.context import find_dashboard_url, read_running

router = APIRouter(include_in_schema=False)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    # The arrows of its style sheet are pictures inside it.
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Elastane: the API</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
<div id="api">Without JavaScript, read <a href="/v1/openapi.json">/v1/openapi.json</a>.</div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</html>
"""
# Without an address of a validator: it would get the description from another server.
START = """SwaggerUIBundle({
  url: "/v1/openapi.json", dom_id: "#api", validatorUrl: null, deepLinking: true, docExpansion: "list",
});
"""
WORDS = """\
This is the API of an Elastane cluster.

No dashboard is known here. Start one:

    elastane dashboard

or, with the controller: elastane up --dashboard

Read and try the API at /docs; its description is at /v1/openapi.json.
"""


@router.get("/")
def get_front_page() -> Response:
    """Send the browser to the dashboard of this cluster, or say how to start it."""
    # The address comes from files of the controller's user, never from the request.
    running = read_running()
    url = "" if running is None else find_dashboard_url(running.url)
    return RedirectResponse(url, 303) if url else PlainTextResponse(WORDS)


@router.get("/docs")
def get_api_page() -> Response:
    """Return the page."""
    return Response(PAGE, media_type="text/html; charset=utf-8", headers=HEADERS)


@router.get("/docs/start.js")
def get_start_script() -> Response:
    """Return the script that begins to show the description."""
    return Response(START, media_type="text/javascript; charset=utf-8", headers=HEADERS)


@router.get("/docs/{file}")
def get_page_file(file: Literal["swagger-ui.css", "swagger-ui-bundle.js"]) -> Response:
    """Return a file of the package."""
    return FileResponse(_find_files() / file, headers=HEADERS)


def _find_files() -> Path:
    # Its own module would build applications of FastAPI.
    spec = find_spec("fastapi_offline")
    assert spec is not None, "the extra `controller` brings it"
    assert spec.origin is not None, "it has files"
    return Path(spec.origin).parent / "static"
