"""``elastane resize``, ``drain`` and ``stop``: change or end a run while it trains."""

import re
import time
from typing import TYPE_CHECKING, Annotated

from elastane.cli.command import AsJson, RunName, open_console, print_json
from elastane.cli.options import argument, flag
from elastane.cli.run_lookup import find_own_run
from elastane.cli.runs.requests import LOOK_S, list_members, send_request, wait_until
from elastane.cli.timestamps import describe_restart, describe_stop_time
from elastane.common.errors import BadInput
from elastane.run.connections.run_lock import is_live
from elastane.run.nouns.control import Answer, AskDrain, AskDrainNode, AskResize, AskStatus, AskStop
from elastane.run.nouns.membership import FIRST_NODE_WORD, NODE_NAME, WorkerId
from elastane.run.nouns.rundir import RunDir

if TYPE_CHECKING:
    from rich.console import Console


AUTO = "auto"


def resize(
    run: RunName,
    workers: Annotated[
        str, argument("N|auto", "New number of workers; auto: let the controller of the run decide.")
    ],
    wait: Annotated[bool, flag("Return once N workers train.", "--wait")] = False,
    as_json: AsJson = False,
) -> None:
    """Change the number of workers of RUN.

    The command returns as soon as the run has accepted the request. Training
    continues: new workers start meanwhile and join at a commit; the newest
    workers leave first. The trained bytes do not depend on the number of workers.
    An unmodified script gets SIGTERM, has time to save, and restarts at the new
    size.

    A run that was started without --start grows and shrinks by itself until you
    set its size; auto lets its controller decide again.
    """
    number = None if workers == AUTO else _parse_workers(workers)
    run_dir = find_own_run(
        run, means="the controller would undo the change within seconds", do="elastane scale {job} MIN:MAX"
    )
    console = open_console(as_json=as_json)
    if number is None:
        answer = _return_to_controller(run_dir)
        console.print(f"accepted: its controller decides (now {format_workers(len(list_members(answer)))})")
        if as_json:
            print_json({"ok": True, "target": answer.target, "workers": list_members(answer)})
        return
    _resize(run_dir, number, console, wait=wait, as_json=as_json)


def _parse_workers(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise BadInput(f"invalid number of workers: {text!r}", do="write 1 or more, or auto")
    return int(text)


def _return_to_controller(run_dir: RunDir) -> Answer:
    """Let the controller of a run decide on its size again."""
    status = send_request(run_dir, AskStatus())
    spec = status.spec
    if spec is None or not spec.self_sizing:
        raise BadInput(
            f"the run in {run_dir.root} has no controller of its own",
            means="it was started with --start, or MIN equals MAX: only you change its size",
            do="give a number; a run that is started without --start grows by itself",
        )
    limits = (spec.min_workers, spec.max_workers)
    return send_request(run_dir, AskResize(workers=status.target, limits=limits))


def _resize(run_dir: RunDir, workers: int, console: "Console", *, wait: bool, as_json: bool) -> None:
    answer = send_request(run_dir, AskResize(workers=workers))
    if wait:
        answer = wait_until(
            run_dir,
            done=lambda status: len(list_members(status)) == workers == status.target,
            stuck=lambda status: explain_other_target(status, workers),
        )
        console.print(
            f"{format_workers(workers)} train{'s' * (workers == 1)} in generation {answer.generation}"
        )
    else:
        now = len(list_members(answer))
        restart = describe_restart(answer.spec) if now != workers else ""
        console.print(f"accepted: {format_workers(workers)} (now {now}){restart}")
    if as_json:
        print_json(
            {"ok": True, "target": workers, "workers": list_members(answer), "generation": answer.generation}
        )


def explain_other_target(status: Answer, workers: int) -> str:
    """Return why a run will not reach this size, for example after another request; empty if it still can."""
    if status.target == workers:
        return ""
    return f"the run now aims at {format_workers(status.target)}, not {workers}; see elastane events"


def format_workers(workers: int) -> str:
    """Return a number of workers as text: ``1 worker``, ``2 workers``."""
    return f"{workers} worker{'s' * (workers != 1)}"


def drain(
    run: RunName,
    subject: Annotated[
        str,
        argument(
            "WORKER|NODE", "Worker number or machine name, as elastane ps shows it; first: the first machine."
        ),
    ],
    wait: Annotated[bool, flag("Return once the worker or machine has left.", "--wait")] = False,
    as_json: AsJson = False,
) -> None:
    """Let WORKER, or the machine NODE, leave RUN at a commit, without losing any of its work.

    The run then continues with one worker fewer, or without those of NODE. The
    elastane join on NODE ends then. An unmodified script gets SIGTERM and has time to save;
    then the others restart without WORKER.
    """
    run_dir = find_own_run(
        run,
        means="the controller would start another worker in its place",
        do="elastane scale {job} --max N for fewer workers",
    )
    if subject.isdecimal() and subject.isascii():
        _drain_worker(run_dir, int(subject), wait=wait, as_json=as_json)
    else:
        _drain_node(run_dir, subject, wait=wait, as_json=as_json)


def _drain_worker(run_dir: RunDir, worker: WorkerId, *, wait: bool, as_json: bool) -> None:
    answer = send_request(run_dir, AskDrain(worker=worker))
    console = open_console(as_json=as_json)
    if wait:
        answer = wait_until(
            run_dir,
            # During a change some members still report the previous generation.
            done=lambda status: status.state != "changing" and worker not in list_members(status),
            stuck=lambda _: "",
        )
        console.print(
            f"worker {worker} has left; generation {answer.generation} has "
            f"{format_workers(len(list_members(answer)))}"
        )
    else:
        restart = describe_restart(answer.spec)
        when = "" if restart else " at the next possible commit"
        console.print(f"accepted: worker {worker} leaves{when}{restart}")
    if as_json:
        print_json(
            {"ok": True, "worker": worker, "workers": list_members(answer), "generation": answer.generation}
        )


def _drain_node(run_dir: RunDir, name: str, *, wait: bool, as_json: bool) -> None:
    node = "" if name == FIRST_NODE_WORD else name
    if not re.fullmatch(f"({NODE_NAME})?", node):
        raise BadInput(
            f"{name!r} is neither a number of a worker nor a name of a machine",
            do="choose one that elastane ps shows",
        )
    console = open_console(as_json=as_json)
    answer = send_request(run_dir, AskDrainNode(node=node))
    note = answer.note
    if wait:
        if note:
            console.print(note, markup=False)
        answer = wait_until(
            run_dir, done=lambda status: all(row.node != node for row in status.processes), stuck=lambda _: ""
        )
    if wait:
        what = f"{name} has left"
    elif note:
        what = f"accepted, but {note}"
    else:
        what = f"accepted: {name} leaves at the next possible commit"
    console.print(what, markup=False)
    if as_json:
        workers = list_members(answer)
        found = {"ok": True, "node": node, "workers": workers, "generation": answer.generation}
        print_json(found | ({"note": note} if note else {}))


def stop(
    run: RunName,
    wait: Annotated[bool, flag("Return once the run is over.", "--wait")] = False,
    as_json: AsJson = False,
) -> None:
    """End RUN at the next commit, after it has written its model.

    An unmodified script gets SIGTERM and has time to save.

    The elastane run command of RUN exits with code 130, as after Ctrl-C.
    """
    run_dir = find_own_run(
        run,
        means="the controller would treat it as a crash and start the run again",
        do="elastane cancel {job}, or elastane pause {job}",
    )
    answer = send_request(run_dir, AskStop())
    while wait and is_live(run_dir):
        time.sleep(LOOK_S)
    accepted = f"accepted: the run stops {describe_stop_time(answer.spec)}"
    open_console(as_json=as_json).print("stopped" if wait else accepted)
    if as_json:
        print_json({"ok": True, "step": answer.step, "stopped": wait})
