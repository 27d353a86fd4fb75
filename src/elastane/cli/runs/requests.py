"""Asking a live run for a change, and waiting until it is in effect where that is wanted."""

import time
from collections.abc import Callable

from elastane.api.control import Answer, Ask, AskStatus
from elastane.api.errors import BadInput, NoSuchRun, RunFailed
from elastane.api.rundir import RunDir

LOOK_S = 0.1


def send_request(run_dir: RunDir, ask: Ask) -> Answer:
    """Ask, and take no for an error.

    Raises:
        NoSuchRun: the run is not live.
        BadInput: the coordinator refused; its words say why.
    """
    from elastane.client.channel import ask as send  # noqa: PLC0415 - websockets are slow to import

    answer = send(run_dir, ask)
    if not answer.ok:
        raise BadInput(answer.why or "the run refused, and did not say why")
    return answer


def list_members(answer: Answer) -> list[int]:
    """Workers that work in the newest generation, those on their way out included."""
    return sorted(
        row.worker
        for row in answer.processes
        if row.role == "worker"
        and row.worker is not None
        and row.state in ("member", "draining")
        and row.generation == answer.generation
    )


def wait_until(run_dir: RunDir, done: Callable[[Answer], bool], stuck: Callable[[Answer], str]) -> Answer:
    """Look until the change is in effect.

    Args:
        run_dir: of the run.
        done: whether this status shows it.
        stuck: why it will never be, or "".

    Raises:
        RunFailed: it will never be, or the run ended first.
    """
    while True:
        try:
            answer = send_request(run_dir, AskStatus())
        except NoSuchRun:
            raise RunFailed("the run ended before the change was in effect") from None
        if done(answer):
            return answer
        if why := stuck(answer):
            raise RunFailed(why)
        time.sleep(LOOK_S)
