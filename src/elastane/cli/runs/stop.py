"""``elastane stop``: end a run at the next commit."""

import time
from typing import Annotated

import typer

from elastane.cli.command import AsJson, RunName, open_console, print_json
from elastane.cli.runs.ownership import find_own_run
from elastane.cli.runs.requests import LOOK_S, send_request
from elastane.cli.stop_times import describe_stop_time
from elastane.run.connections.run_lock import is_live
from elastane.run.nouns.control import AskStop


def stop(
    run: RunName,
    wait: Annotated[bool, typer.Option("--wait", help="Return once the run is over.")] = False,
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
