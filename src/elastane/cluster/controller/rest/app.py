"""The application that uvicorn serves."""

import asyncio
import threading
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from elastane.cluster.controller.rest import (
    agent_records,
    agents,
    api_page,
    caller,
    claims,
    code,
    config,
    documents,
    event_streams,
    jobs,
    metrics,
    nodes,
    notifications,
    problems,
    readings,
    reports,
    tokens,
    workers,
)
from elastane.cluster.controller.rest.context import Controller, Settings
from elastane.cluster.controller.rest.description import build_description
from elastane.cluster.controller.rest.middleware import Framing, SizeLimit

ROUTERS = (
    agents,
    agent_records,
    jobs,
    workers,
    event_streams,
    documents,
    config,
    nodes,
    notifications,
    reports,
    claims,
    code,
    tokens,
    readings,
    metrics,
    api_page,
)


def build_application(controller: Controller) -> FastAPI:
    """Build the API of a controller. Set ``state.closing`` before the server stops, to end all streams."""
    app = _build_app(controller.settings)
    app.state.controller = controller
    app.state.closing = threading.Event()
    app.state.watchers = event_streams.Watchers(
        controller.settings.watchers,
        controller.settings.watchers_per_token,
        controller.settings.watchers_per_user,
    )
    app.state.asked_runs = asyncio.Semaphore(metrics.RUNS_AT_ONCE)
    app.state.uploads = code.Uploads(controller.settings.uploads, controller.settings.uploads_per_user)
    return app


def describe_api() -> dict[str, Any]:
    """Return the OpenAPI description. It needs no controller."""
    return build_description(_build_app(Settings()))


def _build_app(settings: Settings) -> FastAPI:
    app = FastAPI(
        title="Elastane",
        version=version("elastane"),
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        # No redirects for paths with an extra slash: they would lead where the Host header says.
        redirect_slashes=False,
    )
    for module in ROUTERS:
        # Their paths are whole: FastAPI would build each route again to include a router.
        app.router.routes.extend(module.router.routes)
    problems.install_problem_handlers(app)
    caller.install_refusal_audit(app)
    app.add_middleware(SizeLimit, largest=settings.body_bytes, largest_code=settings.code_bytes)
    app.add_middleware(Framing)
    app.openapi = lambda: build_description(app)  # type: ignore[method-assign]
    return app
