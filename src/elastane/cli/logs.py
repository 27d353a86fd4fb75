"""``elastane logs``: the output of the processes of a run or a job."""

from typing import Annotated

import typer

from elastane.cli.command import AsJob, AsJson, Name
from elastane.cli.jobs.logs import show_job_logs
from elastane.cli.run_lookup import find_run_or_job
from elastane.cli.runs.logs import show_run_logs
from elastane.common.errors import BadInput


def logs(
    name: Name,
    process: Annotated[
        str | None,
        typer.Argument(
            metavar="PROCESS",
            help="A worker's number, or agent, coordinator or fork-server. Default: all of them.",
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="NODE", help="Only processes of this machine of a run; first: the one on which it began."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the run or job is over.")
    ] = False,
    job: AsJob = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the output unchanged, with control characters.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the output of the processes of NAME.

    A run on this machine wins over a job of the cluster of the same name,
    unless --job is given.

    Control characters are escaped and colours removed, so that the output of a
    job cannot control your terminal; --raw shows the output unchanged.

    With --json, one object per line, with the keys process and line.
    """
    run_dir = find_run_or_job(name, job=job)
    if run_dir is not None:
        show_run_logs(run_dir, process, node=node, follow=follow, as_json=as_json, raw=raw)
    elif node is not None:
        raise BadInput(
            f"{name} is a job of the cluster, and --node is for runs on several machines",
            do=f"elastane logs {name} shows the output of all its processes",
        )
    else:
        show_job_logs(name, process, follow=follow, as_json=as_json, raw=raw)
