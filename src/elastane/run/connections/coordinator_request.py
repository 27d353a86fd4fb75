"""A single request to the coordinator of a live run."""

import time

from websockets.exceptions import WebSocketException

from elastane.common.errors import NoSuchRun, RunFailed
from elastane.common.permissions import use_owner_rights
from elastane.common.untrusted_data import Malformed
from elastane.run.connections.coordinator_connection import open_connection
from elastane.run.connections.endpoint import read_endpoint, read_secret
from elastane.run.connections.run_lock import is_live
from elastane.run.nouns.control import LARGEST_ANSWER_BYTES, Answer, Ask, decode_answer, encode
from elastane.run.nouns.rundir import RunDir

RETRY_S = 0.05


def ask_coordinator(run_dir: RunDir, question: Ask, timeout_s: float = 10.0) -> Answer:
    """Send a request and return the answer; retry while the coordinator is being replaced.

    Args:
        run_dir: of the run.
        question: the request; it may arrive twice, and every request is idempotent.
        timeout_s: for all retries together, in seconds.

    Raises:
        NoSuchRun: the run is not live.
        RunFailed: the run is live, but no coordinator answered in time.
    """
    deadline = time.monotonic() + timeout_s
    last: Exception | None = None
    while (left_s := deadline - time.monotonic()) > 0:
        if not is_live(run_dir):
            raise NoSuchRun(
                f"the run in {run_dir.root} is not running",
                means="no `elastane run` holds its lock: it has ended, or was killed",
                do=f"elastane report {run_dir.root} shows how it went",
            )
        try:
            return _ask_once(run_dir, question, left_s)
        except (OSError, WebSocketException, Malformed) as error:
            last = error
            time.sleep(RETRY_S)
    raise RunFailed(
        f"the coordinator of {run_dir.root} did not answer within {timeout_s:g} s ({last})",
        means="the run is live, but its coordinator is not; training continues without it",
        do=f"read {run_dir.log('coordinator')}, and try again",
    )


def _ask_once(run_dir: RunDir, question: Ask, timeout_s: float) -> Answer:
    """Send a request once and return the answer; a timeout raises `TimeoutError`, which is an `OSError`."""
    with use_owner_rights(run_dir.root):
        endpoint, secret = read_endpoint(run_dir), read_secret(run_dir)
    with open_connection(
        endpoint, secret, largest_bytes=LARGEST_ANSWER_BYTES, timeout_s=timeout_s
    ) as connection:
        connection.send(encode(question), text=True)
        return decode_answer(connection.recv(timeout=timeout_s))
