"""``elastane events``: the events of a run, a job or the cluster, with their reasons."""

from typing import Annotated

import typer

from elastane.cli.command import NAME, AsJob, AsJson
from elastane.cli.jobs.events import show_cluster_events, show_job_events
from elastane.cli.run_lookup import find_run_or_job
from elastane.cli.runs.events import show_run_events
from elastane.common.errors import BadInput


def events(
    name: Annotated[str | None, NAME] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events until the run or job is over.")
    ] = False,
    job: AsJob = False,
    as_json: AsJson = False,
) -> None:
    """Show the events of NAME, with their reasons.

    For a run on this machine: which workers joined, left or died, and how long
    the others paused. For a job of the cluster: its sizes and the reasons.
    A run wins over a job of the same name, unless --job is given.

    With -f and without NAME: all events of the cluster from now on.

    With --json, one object per line; for a run, the lines of its events.jsonl.
    """
    if name is None:
        if not follow:
            raise BadInput(
                "no run or job was named", do="elastane events NAME, or elastane events -f for the cluster"
            )
        show_cluster_events(as_json=as_json)
        return
    run_dir = find_run_or_job(name, job=job)
    if run_dir is not None:
        show_run_events(run_dir, follow=follow, as_json=as_json)
    else:
        show_job_events(name, follow=follow, as_json=as_json)
