"""Processes that serve until they are ended: how they begin, and how they report to the one that starts them.

Such a process reads its settings as JSON from its standard input, because every user of the machine can read
command lines, and settings may hold a password. It writes one line to the descriptor ``--ready-fd``: the
facts about it once it listens, or a `StartFailure`.
"""

import argparse
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable

import msgspec

from elastane.common.errors import ElastaneError
from elastane.common.log_lines import configure_handler
from elastane.common.permissions import narrow_umask


class StartFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a service does not listen.

    The starting process receives it in addition to the log, because on a full disk nothing can be logged.
    """

    what: str
    means: str = ""
    do: str = ""


def run_service(
    module: str, describe: str | None, serve: Callable[[bytes, Callable[[msgspec.Struct], None]], None]
) -> None:
    """Serve until the end, and report to the starting process.

    Args:
        module: as ``python -m`` takes it.
        describe: for the help of the command line.
        serve: takes the settings and a function for the first report.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=describe)
    parser.add_argument(
        "--ready-fd", type=int, help="file descriptor for a report that it listens, or why it does not"
    )
    parser.add_argument("--with", dest="companion", type=int, help="end when this process has ended")
    options = parser.parse_args()
    narrow_umask()
    if options.companion is not None:
        end_with_process(options.companion)
    logging.basicConfig(level=logging.INFO, handlers=[configure_handler(logging.StreamHandler())])
    reported = False

    def report(what: msgspec.Struct) -> None:
        nonlocal reported
        if options.ready_fd is not None and not reported:
            reported = True
            with os.fdopen(options.ready_fd, "wb") as listening:
                listening.write(msgspec.json.encode(what) + b"\n")

    try:
        serve(sys.stdin.buffer.read(), report)
    except ElastaneError as error:
        logging.getLogger(module).error("error: %s", error)  # noqa: TRY400 - the message is enough
        report(StartFailure(what=error.what, means=error.means, do=error.do))
        sys.exit(error.exit_code)


def end_with_process(pid: int) -> None:
    """Terminate this process when another one ends: a command in a terminal, for example, even if killed."""

    def watch() -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            pass
        else:
            select.select((descriptor,), (), ())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="companion", daemon=True).start()
