"""``elastane stop``: the whole run ends at the next commit."""

import time
from typing import Annotated

import typer

from elastane.api.control import AskStop
from elastane.cli.runs.status import LOOK_S, asked
from elastane.cli.runs.whose import own_run
from elastane.cli.verb import AsJson, RunName, print_json, talk
from elastane.observability.run_files import is_live


def stop(
    run: RunName,
    wait: Annotated[bool, typer.Option("--wait", help="Return once the run is over.")] = False,
    as_json: AsJson = False,
) -> None:
    """End RUN at the next commit; its model is written first.

    The terminal that started it exits with code 130, as after Ctrl-C.
    """
    run_dir = own_run(
        run,
        means="the controller would take it for a crash, and start it again",
        do="elastane cancel {job}, or elastane pause {job}",
    )
    answer = asked(run_dir, AskStop())
    while wait and is_live(run_dir):
        time.sleep(LOOK_S)
    talk(as_json=as_json).print("stopped" if wait else "accepted: the run stops at the next commit")
    if as_json:
        print_json({"ok": True, "step": answer.step, "stopped": wait})
