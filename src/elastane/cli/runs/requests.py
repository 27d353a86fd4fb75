"""Requests to a live run, and waiting for their effect."""

import time
from collections.abc import Callable

from elastane.common.errors import BadInput, NoSuchRun, RunFailed
from elastane.run.nouns.control import Answer, Ask, AskStatus
from elastane.run.nouns.rundir import RunDir

LOOK_S = 0.1


def send_request(run_dir: RunDir, ask: Ask) -> Answer:
    """Send a request to the coordinator of a run, and return its answer."""
    from elastane.run.connections.coordinator_request import ask_coordinator

    answer = ask_coordinator(run_dir, ask)
    if not answer.ok:
        raise BadInput(answer.why or "the run refused without a reason")
    return answer


def list_members(answer: Answer) -> list[int]:
    """Return the numbers of the members of the newest generation, including those that are leaving."""
    return sorted(
        row.worker
        for row in answer.processes
        if row.role == "worker"
        and row.worker is not None
        and row.state in ("member", "draining")
        and row.generation == answer.generation
    )


def wait_until(run_dir: RunDir, done: Callable[[Answer], bool], stuck: Callable[[Answer], str]) -> Answer:
    """Poll a run until a change is in effect, and return the status that shows it.

    Args:
        done: tells whether a status shows the change.
        stuck: returns why the change can no longer take effect; empty if it still can.
    """
    while True:
        try:
            answer = send_request(run_dir, AskStatus())
        except NoSuchRun:
            raise RunFailed("the run ended before the change took effect") from None
        if done(answer):
            return answer
        if why := stuck(answer):
            raise RunFailed(why)
        time.sleep(LOOK_S)
