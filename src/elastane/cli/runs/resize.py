"""``elastane resize``: change the number of workers of a run."""

from typing import TYPE_CHECKING, Annotated

import typer

from elastane.cli.command import AsJson, RunName, open_console, print_json
from elastane.cli.runs.ownership import find_own_run
from elastane.cli.runs.requests import list_members, send_request, wait_until
from elastane.cli.stop_times import describe_restart
from elastane.common.errors import BadInput
from elastane.run.nouns.control import Answer, AskResize, AskStatus
from elastane.run.nouns.rundir import RunDir

if TYPE_CHECKING:
    from rich.console import Console

AUTO = "auto"


def resize(
    run: RunName,
    workers: Annotated[
        str,
        typer.Argument(
            metavar="N|auto", help="New number of workers; auto: let the controller of the run decide."
        ),
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Return once N workers train.")] = False,
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
        run,
        means="the controller would undo the change within seconds",
        do="elastane scale {job} MIN:MAX",
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
    """Let the controller of a run decide on its size again.

    Raises:
        BadInput: the run has no controller.
    """
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
