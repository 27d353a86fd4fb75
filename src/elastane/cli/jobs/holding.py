"""``elastane pause``, ``resume`` and ``cancel``: a job is held, goes on, or is ended."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from elastane.api.wire import ENDED, Job
from elastane.cli.jobs.waiting import until
from elastane.cli.verb import AsJson, JobName, print_json, talk
from elastane.client.context import connect

if TYPE_CHECKING:
    from elastane.client.cluster import Cluster

PAUSES = "pauses: it stops at its next commit and keeps its state"
GOES_ON = "goes on as soon as its minimum fits"
ENDS = "ends at its next commit"

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
            found = waited(cluster, found, PAUSES, lambda now: now.state == "paused", as_json=as_json)
    said(found, PAUSES, as_json=as_json)


def resume(job: JobName, wait: Wait = False, as_json: AsJson = False) -> None:
    """Let a paused JOB go on from its checkpoint.

    It waits until its fewest workers fit.

    With --json, the job.
    """
    with connect() as cluster:
        found = cluster.resume(job)
        if wait:
            found = waited(cluster, found, GOES_ON, trains, as_json=as_json)
    said(found, GOES_ON, as_json=as_json)


def cancel(job: JobName, wait: Wait = False, as_json: AsJson = False) -> None:
    """End JOB for good, at its next commit. Its files stay.

    With --json, the job.
    """
    with connect() as cluster:
        found = cluster.cancel(job)
        if wait:
            found = waited(cluster, found, ENDS, lambda now: now.state in ENDED, as_json=as_json)
    said(found, ENDS, as_json=as_json)


def trains(job: Job) -> bool:
    return job.state == "running" and bool(job.observed.held)


def waited(
    cluster: "Cluster", asked: Job, meanwhile: str, done: Callable[[Job], bool], *, as_json: bool
) -> Job:
    """The job once it is so; somebody who looks on is told what it waits for."""

    def tell(words: str) -> None:
        if not as_json:
            print(words, file=sys.stderr, flush=True)

    if not done(asked):
        tell(f"{asked.name} {meanwhile}")
    return until(cluster, asked, done, tell)


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
