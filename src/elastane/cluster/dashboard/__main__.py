"""``python -m elastane.cluster.dashboard``, which `elastane dashboard` starts, runs until SIGTERM or SIGINT.

It reads a `DashboardSettings`; see `elastane.common.services`.
"""

import logging
from collections.abc import Callable

import msgspec

from elastane.cluster.nouns.dashboard import DashboardSettings
from elastane.common.extras import require
from elastane.common.services import run_service


def main() -> None:
    run_service("elastane.cluster.dashboard", __doc__, _serve)


def _serve(settings: bytes, report: Callable[[msgspec.Struct], None]) -> None:
    # It would log every request to the controller.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    require("dashboard", "a dashboard needs its packages")
    from elastane.cluster.dashboard.server import serve_pages

    serve_pages(msgspec.json.decode(settings, type=DashboardSettings), report)


if __name__ == "__main__":
    main()
