"""``elastane drain``: let one worker leave a run."""

from typing import Annotated

import typer

from elastane.api.control import AskDrain
from elastane.cli.command import AsJson, RunName, open_console, print_json
from elastane.cli.runs.ownership import find_own_run
from elastane.cli.runs.requests import list_members, send_request, wait_until
from elastane.cli.runs.resize import format_workers
from elastane.cli.stop_times import describe_restart


def drain(
    run: RunName,
    worker: Annotated[
        int, typer.Argument(metavar="WORKER", help="Number of the worker, as elastane ps shows it.", min=0)
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Return once the worker has left.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let WORKER leave RUN at a commit, without losing any of its work.

    The run then continues with one worker fewer. An unmodified script gets
    SIGTERM and has time to save; then the others restart without WORKER.
    """
    run_dir = find_own_run(
        run,
        means="the controller would start another worker in its place",
        do="elastane scale {job} --max N for fewer workers",
    )
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
