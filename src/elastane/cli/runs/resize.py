"""``elastane resize``: another number of workers."""

from typing import Annotated

import typer

from elastane.api.control import Answer, AskResize
from elastane.cli.runs.status import asked, members, wait_until
from elastane.cli.verb import AsJson, RunName, print_json, talk
from elastane.client.resolve import find_run


def resize(
    run: RunName,
    workers: Annotated[int, typer.Argument(metavar="N", help="Workers from now on.", min=1)],
    wait: Annotated[bool, typer.Option("--wait", help="Return once N workers train.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give RUN another number of workers.

    Returns as soon as the run has accepted. Training goes on meanwhile: new
    workers start beside it and join at a commit, the newest leave first.
    The trained bytes do not depend on any of this.
    """
    run_dir = find_run(run)
    answer = asked(run_dir, AskResize(workers=workers))
    console = talk(as_json=as_json)
    if wait:
        answer = wait_until(
            run_dir,
            done=lambda status: len(members(status)) == workers == status.target,
            stuck=lambda status: overtaken(status, workers),
        )
        console.print(f"{workers} workers train in generation {answer.generation}")
    else:
        console.print(f"accepted: {workers} workers (now {len(members(answer))})")
    if as_json:
        print_json(
            {"ok": True, "target": workers, "workers": members(answer), "generation": answer.generation}
        )


def overtaken(status: Answer, workers: int) -> str:
    """Why this many workers will not come: somebody asked for another number, or the run gave up on it."""
    if status.target == workers:
        return ""
    return f"the run now aims at {status.target} workers, not {workers}; elastane events tells why"
