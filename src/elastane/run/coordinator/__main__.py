"""``python -m elastane.run.coordinator``: the agent starts it, on a socket that already listens.

The process waits until it reads a `TermOrder` on standard input. Until then it opens no file of the run and
accepts no message. It has already imported all its modules by then, which takes time.
"""

import argparse
import asyncio

# `asyncio.to_thread` would import it in the first moments of a term.
import concurrent.futures.thread  # noqa: F401
import importlib
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from elastane.common.errors import ElastaneError
from elastane.common.log_lines import configure_handler
from elastane.run.connections.endpoint import (
    AnotherAttempt,
    CoordinatorEndpoint,
    build_endpoint,
    publish_endpoint,
)
from elastane.run.connections.run_certificate import read_certificate
from elastane.run.coordinator.roster import Takeover
from elastane.run.coordinator.server import Coordinator
from elastane.run.machines.claims.decisions import DecisionClaims
from elastane.run.machines.claims.place import ClaimsUnusable
from elastane.run.machines.claims.terms import REFUSED_CODE, SUPERSEDED_CODE, OwnTerm, Superseded, TermOrder
from elastane.run.machines.claims.urls import open_claims
from elastane.run.nouns.machine_address import read_machine_address
from elastane.run.nouns.notices import withstand_notices
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import number_attempt
from elastane.run.observability.run_files import read_record

if TYPE_CHECKING:
    from elastane.run.connections.record_store import RecordSender

CLAIM_S = 1.0
"""How long a claim or a check may wait for the file system of the run directory."""

CLAIM_TERM_AGAIN_S = 1.0
"""How long after an unanswered claim of its term the coordinator repeats it: a service may be overloaded."""

logger = logging.getLogger(__name__)


async def serve_until_stopped(
    coordinator: Coordinator,
    listening: socket.socket,
    lifeline: int | None,
    own_term: OwnTerm,
    check: Callable[[], Superseded | None],
    *,
    check_every_s: float,
) -> Superseded | None:
    """Serve until the agent closes the standard input, or has ended at the other end of the lifeline.

    Args:
        lifeline: read end of the agent's pipe.
        check: compares the term with the claim list, and returns the reason to end.
        check_every_s: the time between two checks.

    Returns:
        The reason if another coordinator is in charge now; otherwise None.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    # The agent closes it to end this process; only tests have another input than a pipe.
    with suppress(PermissionError):
        loop.add_reader(sys.stdin.fileno(), ended.set)
    if lifeline is not None:
        loop.add_reader(lifeline, ended.set)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(coordinator.serve(listening))
        checking = group.create_task(_check_until_superseded(coordinator, own_term, check, check_every_s))
        checking.add_done_callback(lambda _: ended.set())
        await ended.wait()
        serving.cancel()
        checking.cancel()
    return None if checking.cancelled() else checking.result()


async def _check_until_superseded(
    coordinator: Coordinator,
    own_term: OwnTerm,
    check: Callable[[], Superseded | None],
    check_every_s: float,
) -> Superseded:
    while True:
        # In a thread: a file system that hangs must not delay the run.
        if (superseded := await asyncio.to_thread(check)) is not None:
            return superseded
        coordinator.receive_check(answered=own_term.answered)
        await asyncio.sleep(check_every_s)


def _check_and_publish(
    run_dir: RunDir, own_term: OwnTerm, endpoint: CoordinatorEndpoint, sender: "RecordSender | None"
) -> Superseded | None:
    """Compare the term with the list, and publish the endpoint if that of an earlier term is still there.

    The time stamp of the endpoint is a sign of life for agents that the network has cut off.
    """
    if (superseded := own_term.check()) is None:
        try:
            publish_endpoint(run_dir, endpoint)
            os.utime(run_dir.endpoint)
        except OSError as error:
            logger.warning("cannot write %s: %s", run_dir.endpoint, error.strerror)
        if sender is not None:
            # While the controller is away the records wait here, and no reports are acknowledged.
            with suppress(ElastaneError, OSError):
                sender.send_new(renew=True)
    return superseded


def _claim_surely(own_term: OwnTerm, lifeline: int | None, *, begins: bool) -> bool:
    """Claim the term, however long the list is away; return False if it will not be claimed.

    Args:
        lifeline: closes when the agent ends, and the term is not needed.
        begins: nothing of the run has begun, so it ends if the list refuses the claim. Later the claim waits
            also then: a token may have expired, and be renewed.
    """
    own_term.claim()
    while not own_term.claimed:
        if begins and own_term.refusal is not None:
            return False
        if select.select([] if lifeline is None else [lifeline], [], [], CLAIM_TERM_AGAIN_S)[0]:
            return False
        own_term.claim()
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="listening socket")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--node", default="", help="name of this machine in the run")
    parser.add_argument("--lifeline", type=int, help="read end of the agent's pipe")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, handlers=[configure_handler(logging.StreamHandler())])
    # Signals may reach all processes of the run; the agent alone decides what they mean.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    withstand_notices()
    run_dir = RunDir(options.run_dir, options.node)
    if run_dir.is_private:
        # Its claims and records are at a controller.
        for module in (
            "elastane.run.coordinator.takeover_records",
            "elastane.run.machines.claims.controller_store",
        ):
            importlib.import_module(module)
    line = sys.stdin.readline()
    if not line:
        # The agent has ended, so nothing is left to coordinate.
        return
    os.set_blocking(options.fd, False)
    listening = socket.socket(fileno=options.fd)
    order = msgspec.json.decode(line, type=TermOrder)
    reason = _serve_term(run_dir, order, listening, options.lifeline)
    if isinstance(reason, ClaimsUnusable):
        # In one line, which the agent reads.
        logger.error("%s; %s; do: %s", reason.what, reason.means, reason.do)
        sys.exit(REFUSED_CODE)
    if reason is not None:
        logger.error("%s", reason)
        sys.exit(SUPERSEDED_CODE)


def _serve_term(
    run_dir: RunDir, order: TermOrder, listening: socket.socket, lifeline: int | None
) -> Superseded | AnotherAttempt | ClaimsUnusable | None:
    """Claim a term and serve it; return the reason if this coordinator is not in charge, or not any more."""
    record = read_record(run_dir)
    attempt = number_attempt(record.resumed)
    if attempt != order.attempt:
        return AnotherAttempt(order.attempt, attempt)
    endpoint = None
    if record.spec.listen:
        endpoint = build_endpoint(
            run_dir,
            read_machine_address(run_dir),
            listening.getsockname()[1],
            read_certificate(run_dir),
            attempt,
        )
    claims = open_claims(run_dir, record.spec, wait_s=CLAIM_S)
    own_term = OwnTerm(claims, order.term, endpoint)
    first_term = 1 if record.resumed is None else record.resumed.first_term
    decisions = DecisionClaims(claims, own_term, first_term)
    # Before the ledger is opened: an older coordinator that still holds its lock sees the claim and ends.
    if endpoint is None:
        own_term.claim()
        coordinator, check = Coordinator(run_dir, own_term.number, decisions), own_term.check
    elif _claim_surely(own_term, lifeline, begins=record.resumed is None and not run_dir.events.exists()):
        endpoint = msgspec.structs.replace(endpoint, term=own_term.number)
        takeover, sender = _describe_takeover(own_term, order, run_dir), None
        if run_dir.is_private:
            sender = _fetch_surely(run_dir, endpoint, takeover.from_node, lifeline)
            if sender is None:
                return None
        coordinator = Coordinator(run_dir, own_term.number, decisions, takeover=takeover, sender=sender)
        check = partial(_check_and_publish, run_dir, own_term, endpoint, sender)
    else:
        return own_term.refusal
    return asyncio.run(
        serve_until_stopped(
            coordinator, listening, lifeline, own_term, check, check_every_s=record.spec.silence.check_every_s
        )
    )


def _fetch_surely(
    run_dir: RunDir, endpoint: CoordinatorEndpoint, from_node: str | None, lifeline: int | None
) -> "RecordSender | None":
    """Fetch the records of the run, if another machine was in charge, however long they are away.

    The term is claimed already, so no other machine adds to them.

    Args:
        endpoint: of this coordinator.
        from_node: the machine that was in charge before, if it was another one.
        lifeline: closes when the agent ends, and the term is not needed.

    Returns:
        What sends the records of this term; None: the agent has ended.
    """
    from elastane.run.coordinator.takeover_records import fetch_records

    complained = False
    while True:
        try:
            return fetch_records(run_dir, endpoint, from_node)
        except (ElastaneError, OSError) as error:
            if not complained:
                logger.warning("term %d waits for the records of the run: %s", endpoint.term, error)
            complained = True
        if select.select([] if lifeline is None else [lifeline], [], [], CLAIM_TERM_AGAIN_S)[0]:
            return None


def _describe_takeover(own_term: OwnTerm, order: TermOrder, run_dir: RunDir) -> Takeover:
    from_node = _find_earlier_node(own_term, run_dir)
    if not own_term.is_next:
        # Another machine has just taken charge too, and was not silent.
        return Takeover(from_node, waited=own_term.waited)
    return Takeover(from_node, order.silent_s, frozenset(order.answering), own_term.waited, order.has_left)


def _find_earlier_node(own_term: OwnTerm, run_dir: RunDir) -> str | None:
    """Return the machine that was in charge before, if it was another one; None: this machine, or none."""
    if own_term.before is None or own_term.before.endpoint is None:
        return None
    node = own_term.before.endpoint.node
    return None if node == run_dir.node else node


if __name__ == "__main__":
    main()
