"""``elastane reprioritise``: another priority class for a job."""

from typing import Annotated

import typer

from elastane.cli.command import AsJson, JobName, open_console, print_json
from elastane.client.context import connect


def reprioritise(
    job: JobName,
    priority_class: Annotated[
        str, typer.Argument(metavar="CLASS", help="As elastane priority list shows them.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Give JOB another priority class.

    The next plan follows it: more important jobs take from less important ones
    what these can give up.

    With --json, the job.
    """
    with connect() as cluster:
        found = cluster.reprioritise(job, priority_class)
    if as_json:
        print_json(found)
        return
    open_console().print(f"{job} has the priority {found.priority_class} now", markup=False)
