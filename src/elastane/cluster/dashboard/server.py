"""The process of the dashboard: it listens until it is ended."""

import os
import secrets
from collections.abc import Callable
from types import FrameType

import uvicorn

from elastane.cluster.dashboard.app import build_dashboard
from elastane.cluster.nouns.dashboard import DashboardReady, DashboardSettings
from elastane.common.connections.http_listener import format_url, open_http_listener

FAREWELL_S = 2
IDLE_S = 75
MOST_CONNECTIONS = 1000


class _PageServer(uvicorn.Server):
    """A server that ends its streams before it shuts down."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.closing.set()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


def serve_pages(settings: DashboardSettings, ready: Callable[[DashboardReady], None]) -> None:
    """Serve until SIGTERM or SIGINT."""
    listener = open_http_listener(settings.host, settings.port, settings.certificate, settings.key)
    url = format_url(listener, encrypted=bool(settings.certificate))
    key = secrets.token_urlsafe(24) if settings.run_dir else ""
    app = build_dashboard(settings, port=listener.getsockname()[1], key=key)
    server = _PageServer(
        uvicorn.Config(
            app,
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            # The Host header and the address of a browser are checked; no proxy is trusted to name others.
            proxy_headers=False,
            server_header=False,
            ssl_certfile=settings.certificate or None,
            ssl_keyfile=settings.key or None,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=FAREWELL_S,
        )
    )
    ready(DashboardReady(url=url, pid=os.getpid(), key=key))
    try:
        server.run(sockets=[listener])
    finally:
        app.state.feeds.close()
        listener.close()
