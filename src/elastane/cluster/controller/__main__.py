"""``python -m elastane.cluster.controller``, which `elastane up` starts, runs until SIGTERM or SIGINT.

It reads a `ControllerSettings`; see `elastane.common.services`.
"""

import logging
import time
from collections.abc import Callable

import msgspec

from elastane.cluster.nouns.controller import ControllerSettings
from elastane.common.extras import require
from elastane.common.services import run_service


def main() -> None:
    run_service("elastane.cluster.controller", __doc__, _serve)


def _serve(settings: bytes, report: Callable[[msgspec.Struct], None]) -> None:
    logging.getLogger("alembic").setLevel(logging.WARNING)
    require("controller", "a controller needs its packages")
    from elastane.cluster.controller.server import serve

    serve(msgspec.json.decode(settings, type=ControllerSettings), report, time.time)


if __name__ == "__main__":
    main()
