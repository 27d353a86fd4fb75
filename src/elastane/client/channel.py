"""One question to a live run's coordinator, and its answer."""

import time

import msgspec
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from elastane.api.control import Answer, Ask, decode_answer, encode
from elastane.api.errors import NoSuchRun, RunFailed
from elastane.api.rundir import RunDir
from elastane.client.owner_rights import rights_of_owner
from elastane.observability.run_files import is_live

RETRY_S = 0.05
LARGEST_ANSWER_BYTES = 16 * 2**20


class Endpoint(msgspec.Struct, frozen=True):
    host: str
    port: int


def ask(run_dir: RunDir, question: Ask, timeout_s: float = 10.0) -> Answer:
    """Asks, and asks again while the coordinator is being replaced.

    Args:
        run_dir: of the run.
        question: may arrive twice; every question can be repeated without harm.
        timeout_s: for all attempts together, in seconds.

    Raises:
        NoSuchRun: the run is not live.
        RunFailed: it is, but nobody answered in time.
    """
    deadline = time.monotonic() + timeout_s
    last: Exception | None = None
    while (left_s := deadline - time.monotonic()) > 0:
        if not is_live(run_dir):
            raise NoSuchRun(
                f"the run in {run_dir.root} is not running",
                means="no `elastane run` holds its lock: it has ended, or was ended",
                do=f"elastane report {run_dir.root} shows how it went",
            )
        try:
            return _ask_once(run_dir, question, left_s)
        except (OSError, WebSocketException, msgspec.DecodeError) as error:
            last = error
            time.sleep(RETRY_S)
    raise RunFailed(
        f"the coordinator of {run_dir.root} did not answer within {timeout_s:g} s ({last})",
        means="the run is live, but its coordinator is not; training goes on without it meanwhile",
        do=f"look into {run_dir.log('coordinator')}, and ask again",
    )


def _ask_once(run_dir: RunDir, question: Ask, timeout_s: float) -> Answer:
    """A `TimeoutError` is an `OSError` too."""
    with rights_of_owner(run_dir.root):
        endpoint = msgspec.json.decode(run_dir.endpoint.read_bytes(), type=Endpoint)
        secret = run_dir.secret.read_text().strip()
    with connect(
        f"ws://{endpoint.host}:{endpoint.port}",
        additional_headers={"Authorization": f"Bearer {secret}"},
        open_timeout=timeout_s,
        close_timeout=1,
        max_size=LARGEST_ANSWER_BYTES,
        compression=None,
        proxy=None,
    ) as connection:
        connection.send(encode(question), text=True)
        return decode_answer(connection.recv(timeout=timeout_s))
