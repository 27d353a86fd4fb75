"""``elastane drain``: let a worker or a machine leave a run."""

import re
from typing import Annotated

import typer

from elastane.cli.command import AsJson, RunName, open_console, print_json
from elastane.cli.runs.ownership import find_own_run
from elastane.cli.runs.requests import list_members, send_request, wait_until
from elastane.cli.runs.resize import format_workers
from elastane.cli.stop_times import describe_restart
from elastane.common.errors import BadInput
from elastane.run.nouns.control import AskDrain, AskDrainNode
from elastane.run.nouns.membership import FIRST_NODE_WORD, NODE_NAME, WorkerId
from elastane.run.nouns.rundir import RunDir


def drain(
    run: RunName,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="WORKER|NODE",
            help="Worker number or machine name, as elastane ps shows it; first: the first machine.",
        ),
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Return once the worker or machine has left.")] = False,
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
            run_dir,
            done=lambda status: all(row.node != node for row in status.processes),
            stuck=lambda _: "",
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
