"""``python -m elastane.coordinator``: the agent starts it, on a socket that already listens.

The process waits until it reads the number of its term on standard input. Until then it opens no file and
accepts no message. It has already imported all its modules by then, which takes time.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from elastane.api.log_lines import configure_handler
from elastane.api.patient_listener import make_patient_listener
from elastane.api.rundir import RunDir
from elastane.coordinator.server import Coordinator


async def serve_until_stopped(
    coordinator: Coordinator, listening: socket.socket, lifeline: int | None
) -> None:
    """Serve until SIGTERM, or until the agent at the other end of the lifeline has ended."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    if lifeline is not None:
        loop.add_reader(lifeline, ended.set)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(coordinator.serve(listening))
        await ended.wait()
        serving.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="listening socket")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--lifeline", type=int, help="read end of the agent's pipe")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, handlers=[configure_handler(logging.StreamHandler())])
    # Ctrl-C reaches the whole foreground process group; the agent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    term = sys.stdin.readline()
    if not term:
        # The agent has ended, so nothing is left to coordinate.
        return
    os.set_blocking(options.fd, False)
    listening = make_patient_listener(socket.socket(fileno=options.fd))
    asyncio.run(
        serve_until_stopped(Coordinator(RunDir(options.run_dir), int(term)), listening, options.lifeline)
    )


if __name__ == "__main__":
    main()
