"""``python -m elastane.cluster.controller``, which `elastane up` starts, runs until SIGTERM or SIGINT.

It reads a `ControllerSettings` as JSON from its standard input. Every user of the machine can read command
lines, and the URL of the store may hold a password.
"""

import argparse
import logging
import os
import signal
import sys
import threading
import time

import msgspec

from elastane.cluster.nouns.controller import (
    ControllerReady,
    ControllerSettings,
    ControllerStartFailure,
)
from elastane.common.errors import ElastaneError
from elastane.common.extras import require
from elastane.common.log_lines import configure_handler
from elastane.common.permissions import narrow_umask

COMPANION_S = 0.5

logger = logging.getLogger("elastane.cluster.controller")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m elastane.cluster.controller", description=__doc__)
    parser.add_argument(
        "--ready-fd", type=int, help="file descriptor for a report that it listens, or why it does not"
    )
    parser.add_argument("--with", dest="companion", type=int, help="end when this process has ended")
    options = parser.parse_args()
    narrow_umask()
    if options.companion is not None:
        end_with(options.companion)
    logging.basicConfig(level=logging.INFO, handlers=[configure_handler(logging.StreamHandler())])
    logging.getLogger("alembic").setLevel(logging.WARNING)

    reported = False

    def report(what: ControllerReady | ControllerStartFailure) -> None:
        nonlocal reported
        if options.ready_fd is not None and not reported:
            reported = True
            with os.fdopen(options.ready_fd, "wb") as listening:
                listening.write(msgspec.json.encode(what) + b"\n")

    try:
        require("controller", "a controller needs its packages")
        from elastane.cluster.controller.server import serve

        serve(msgspec.json.decode(sys.stdin.buffer.read(), type=ControllerSettings), report, time.time)
    except ElastaneError as error:
        logger.error("error: %s", error)  # noqa: TRY400 - the message is enough
        report(ControllerStartFailure(what=error.what, means=error.means, do=error.do))
        sys.exit(error.exit_code)


def end_with(pid: int) -> None:
    """Terminate this process when its parent ends: a command in a terminal, for example, even if killed."""

    def watch() -> None:
        while os.getppid() == pid:
            time.sleep(COMPANION_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="companion", daemon=True).start()


if __name__ == "__main__":
    main()
