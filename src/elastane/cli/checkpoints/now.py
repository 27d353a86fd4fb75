"""``elastane checkpoint now``: have a live run write a checkpoint."""

import time
from typing import TYPE_CHECKING, Annotated

from elastane.cli.command import AsJson, RunName, open_console, print_json
from elastane.cli.options import flag
from elastane.cli.run_lookup import find_trained_run
from elastane.cli.runs.requests import send_request
from elastane.common.errors import BadInput, NoSuchRun, RunFailed
from elastane.run.connections.run_lock import is_live
from elastane.run.nouns.control import AskCheckpoint, AskStatus
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.quantities import format_size
from elastane.run.observability.run_files import decode_event_line, read_record
from elastane.run.observability.tail import Tail

if TYPE_CHECKING:
    from rich.console import Console

LOOK_S = 0.2
PROBLEMS = frozenset({"checkpoint.failing", "checkpoint.abandoned"})


def write_checkpoint_now(
    run: RunName,
    wait: Annotated[bool, flag("Return once the checkpoint exists.", "--wait")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint of RUN: the state after its current or next step.

    The command returns as soon as the run has accepted the request. Training
    continues: workers copy the state during one step and write it during the
    following ones.

    With --json, an object with the keys ok and step (of the run when it
    accepted); with --wait, ok, name, step and bytes (of the checkpoint).
    """
    run_dir = find_trained_run(run, "checkpoints")
    if read_record(run_dir).spec.checkpoints is None and is_live(run_dir):
        raise BadInput(
            f"{run} writes no checkpoints: it was started with --checkpoint-every never",
            means="it has no directory for checkpoints",
            do="for checkpoints only on request, start a run with --checkpoint-every never "
            "--checkpoint-dir URL",
        )
    written = Tail(run_dir.files, run_dir.events)
    written.read_new_lines()
    answer = send_request(run_dir, AskCheckpoint())
    console = open_console(as_json=as_json)
    if not wait:
        console.print(f"accepted: the run writes a checkpoint of step {answer.step} or a little later")
        if as_json:
            print_json({"ok": True, "step": answer.step})
        return
    saved = wait_for_checkpoint(run_dir, written, answer.step, answer.term, console)
    name, step = str(saved.detail["name"]), saved.detail["step"]
    size_bytes = saved.detail["bytes"]
    console.print(f"{name} is written: {format_size(float(size_bytes or 0))}", markup=False)
    if as_json:
        print_json({"ok": True, "name": name, "step": step, "bytes": size_bytes})


def wait_for_checkpoint(
    run_dir: RunDir, written: Tail, step: int, term: int, console: "Console"
) -> EventLine:
    """Return the event of the first checkpoint of this step or a later one; print those that fail meanwhile.

    Args:
        written: reads the events from the request on.
        step: of the run when it accepted the request.
        term: of the coordinator that accepted the request.
        console: prints events about checkpoints that failed or were abandoned.
    """
    from elastane.cli.runs.run_display import describe_run_event

    while True:
        # Check before reading, so that the last events are still read.
        live = is_live(run_dir)
        for event in map(decode_event_line, written.read_new_lines()):
            if event.kind == "checkpoint.saved" and int(event.detail.get("step") or 0) >= step:
                return event
            if event.kind in PROBLEMS:
                console.print(describe_run_event(event))
        if not live:
            raise RunFailed("the run ended before the checkpoint was written")
        term = repeat_request(run_dir, term)
        time.sleep(LOOK_S)


def repeat_request(run_dir: RunDir, term: int) -> int:
    """Repeat the request if another coordinator has taken over, and return the term of the present one.

    A coordinator that dies loses the requests it has accepted.
    """
    try:
        present = send_request(run_dir, AskStatus()).term
        if present != term:
            send_request(run_dir, AskCheckpoint())
    except (NoSuchRun, BadInput):
        return term  # the run is ending, and then writes a checkpoint by itself
    return present
