"""``elastane pause``, ``resume`` and ``cancel``: a job is held, goes on, or is ended."""

from typing import Annotated

import typer

from elastane.api.wire import ENDED, Job
from elastane.cli.jobs.waiting import until
from elastane.cli.verb import AsJson, JobName, print_json, talk
from elastane.client.context import connect

Wait = Annotated[bool, typer.Option("--wait", help="Return once it is so.", show_default=False)]


def pause(job: JobName, wait: Wait = False, as_json: AsJson = False) -> None:
    """Stop JOB with a checkpoint; give its devices to others.

    It stops at its next commit. It keeps its place among the jobs, and goes on
    with elastane resume.

    With --json, the job.
    """
    with connect() as cluster:
        found = cluster.pause(job)
        if wait:
            found = until(cluster, job, lambda now: now.state == "paused")
    said(found, "pauses: it stops at its next commit and keeps its state", as_json=as_json)


def resume(job: JobName, wait: Wait = False, as_json: AsJson = False) -> None:
    """Let a paused JOB go on from its checkpoint.

    It waits until its fewest workers fit.

    With --json, the job.
    """
    with connect() as cluster:
        found = cluster.resume(job)
        if wait:
            found = until(cluster, job, lambda now: now.state == "running" and bool(now.observed.held))
    said(found, "goes on as soon as its minimum fits", as_json=as_json)


def cancel(job: JobName, wait: Wait = False, as_json: AsJson = False) -> None:
    """End JOB for good, at its next commit. Its files stay.

    With --json, the job.
    """
    with connect() as cluster:
        found = cluster.cancel(job)
        if wait:
            found = until(cluster, job, lambda now: now.state in ENDED)
    said(found, "ends at its next commit", as_json=as_json)


def said(job: Job, meanwhile: str, *, as_json: bool) -> None:
    """What is so now, or what will be."""
    if as_json:
        print_json(job)
        return
    settled = {
        "paused": f"{job.name} is paused",
        "finished": f"{job.name} has finished",
        "failed": f"{job.name} has failed: {job.why}",
        "cancelled": f"{job.name} is cancelled",
    }
    if job.state == "running" and job.wanted == "run":
        meanwhile = f"runs with {job.workers} worker{'s' * (job.workers != 1)}"
    talk().print(settled.get(job.state, f"{job.name} {meanwhile}"), markup=False)
