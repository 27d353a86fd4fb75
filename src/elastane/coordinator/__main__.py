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
from elastane.api.rundir import CLAIMS, RunDir
from elastane.claims.generations import GenerationClaims
from elastane.claims.terms import CHECK_EVERY_S, SUPERSEDED_CODE, OwnTerm, Superseded
from elastane.claims.urls import open_claim_list
from elastane.coordinator.server import Coordinator

CLAIM_S = 1.0
"""How long a claim or a check may wait for the file system of the run directory."""

logger = logging.getLogger(__name__)


async def serve_until_stopped(
    coordinator: Coordinator, own_term: OwnTerm, listening: socket.socket, lifeline: int | None
) -> Superseded | None:
    """Serve until SIGTERM, or until the agent at the other end of the lifeline has ended.

    Returns:
        The reason if another coordinator is in charge now; otherwise None.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    if lifeline is not None:
        loop.add_reader(lifeline, ended.set)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(coordinator.serve(listening))
        checking = group.create_task(_check_until_superseded(own_term))
        checking.add_done_callback(lambda _: ended.set())
        await ended.wait()
        serving.cancel()
        checking.cancel()
    return None if checking.cancelled() else checking.result()


async def _check_until_superseded(own_term: OwnTerm) -> Superseded:
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        # In a thread: a file system that hangs must not delay the run.
        if (superseded := await asyncio.to_thread(own_term.check)) is not None:
            return superseded


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
    run_dir = RunDir(options.run_dir)
    claims = open_claim_list(str(run_dir.root / CLAIMS), wait_s=CLAIM_S)
    own_term = OwnTerm(claims, at_least=int(term))
    # Before the ledger is opened: an older coordinator that still holds its lock sees the claim and ends.
    own_term.claim()
    coordinator = Coordinator(run_dir, own_term.number, GenerationClaims(claims, own_term))
    superseded = asyncio.run(serve_until_stopped(coordinator, own_term, listening, options.lifeline))
    if superseded is not None:
        logger.error("%s", superseded)
        sys.exit(SUPERSEDED_CODE)


if __name__ == "__main__":
    main()
