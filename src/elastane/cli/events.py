"""``elastane events``: what happened in a run, and why."""

import time
from typing import Annotated

import typer

from elastane.cli.verb import AsJson, RunName, print_json, talk
from elastane.client.resolve import find_run
from elastane.observability.run_files import decode_event_line, is_live, read_run
from elastane.observability.tail import Tail

LOOK_S = 0.2


def events(
    run: RunName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run is over.", show_default=False)
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show every change of RUN: who joined, left or died, why, and how long the others paused.

    With --json, one object per line, as in events.jsonl.
    """
    from elastane.cli.words import event_text  # noqa: PLC0415 - rich

    run_dir = find_run(run)
    console = talk(as_json=as_json)
    if not follow:
        for event in read_run(run_dir).events:
            print_json(event) if as_json else console.print(event_text(event))
        return
    tail = Tail(run_dir.events)
    while True:
        # Asked before reading, so that what was written last is still read.
        live = is_live(run_dir)
        for line in tail.new_lines():
            event = decode_event_line(line)
            print_json(event) if as_json else console.print(event_text(event))
        if not live:
            return
        time.sleep(LOOK_S)
