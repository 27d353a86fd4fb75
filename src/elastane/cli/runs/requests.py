"""Requests to a live run, and waiting for their effect."""

import sys
import time
from collections.abc import Callable, Iterator

from elastane.cli.run_lookup import find_active_job
from elastane.common.errors import BadInput, NoSuchRun, RunFailed
from elastane.run.connections.run_lock import is_live
from elastane.run.nouns.control import Answer, Ask, AskStatus
from elastane.run.nouns.rundir import RunDir

LOOK_S = 0.1
WAIT_S = 0.2
BETWEEN_ATTEMPTS_S = 1.0
"""Longer than ``WAIT_S``, because each poll between attempts asks the controller."""


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


def poll_run(run_dir: RunDir, *, follow: bool) -> Iterator[bool]:
    """Yield whether more output may come, poll after poll; False, once, when the run is over.

    The caller reads the files of the run after each value, so it still reads the last output.
    """
    shown = ""
    while follow:
        live = is_live(run_dir)
        job = None if live else find_active_job(run_dir)
        if not live and job is None:
            break
        yield True
        # The caller has read the last output of the attempt by now.
        if job is not None and job.state not in (shown, "running"):
            print(f"{job.name} is {job.state}; waiting for its next attempt", file=sys.stderr, flush=True)
        shown = "" if job is None else job.state
        time.sleep(WAIT_S if live else BETWEEN_ATTEMPTS_S)
    yield False
