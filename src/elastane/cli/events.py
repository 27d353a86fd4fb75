"""``elastane events``: the events of a run, a job or the cluster, with their reasons."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from elastane.cli.command import NAME, AsJob, AsJson, open_console, print_json
from elastane.cli.option_values import read_duration_s
from elastane.cli.options import flag, option
from elastane.cli.run_lookup import find_run_or_job
from elastane.cli.runs.requests import poll_run
from elastane.cli.timestamps import format_timestamp
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.history import Event
from elastane.cluster.nouns.job_records import ENDED
from elastane.common.errors import BadInput
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import decode_event_line, read_run
from elastane.run.observability.tail import Tail

if TYPE_CHECKING:
    from elastane.cluster.client.cluster import Cluster


def events(
    name: Annotated[str | None, NAME] = None,
    follow: Annotated[bool, flag("Print new events until the run or job is over.", "--follow", "-f")] = False,
    since: Annotated[
        str | None, option("DURATION", "Only events of this time until now, such as 90s or 2h.")
    ] = None,
    job: AsJob = False,
    as_json: AsJson = False,
) -> None:
    """Show the events of NAME, with their times and reasons.

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
        if since is not None:
            raise BadInput(
                "--since needs NAME", do="name a run or a job; -f alone begins with the next event"
            )
        show_cluster_events(as_json=as_json)
        return
    first_s = 0.0 if since is None else time.time() - read_duration_s("--since", since)
    run_dir = find_run_or_job(name, job=job)
    if run_dir is not None:
        show_run_events(run_dir, first_s, follow=follow, as_json=as_json)
    else:
        show_job_events(name, first_s, follow=follow, as_json=as_json)


def show_run_events(run_dir: RunDir, first_s: float, *, follow: bool, as_json: bool) -> None:
    """Print the events of a run from a time on; with ``follow`` until the run is over."""
    from elastane.cli.runs.run_display import describe_run_event

    console = open_console(as_json=as_json)

    def show(event: EventLine) -> None:
        if event.time < first_s:
            return
        if as_json:
            print_json(event)
        else:
            console.print(format_timestamp(event.time), end="  ", style="dim", highlight=False)
            console.print(describe_run_event(event))

    if not follow:
        for event in read_run(run_dir).events:
            show(event)
        return
    tail = Tail(run_dir.files, run_dir.events)
    for _ in poll_run(run_dir, follow=True):
        for line in tail.read_new_lines():
            show(decode_event_line(line))


LAST = frozenset({"job.finished", "job.failed", "job.cancelled"})


def show_job_events(name: str, first_s: float, *, follow: bool, as_json: bool) -> None:
    """Print the events of one job from a time on; with ``follow`` until the job has ended."""
    show = _make_printer(of_job=True, as_json=as_json)
    with connect() as cluster:
        after = 0
        for event in cluster.jobs.events(name):
            if event.time_s >= first_s:
                show(event)
            after = event.id
        if not follow or _has_ended(cluster, name):
            return
        for event in cluster.watch(job=name, after=after):
            show(event)
            # A request to end a job is an event too, before the job has ended.
            if event.kind in LAST and _has_ended(cluster, name):
                return


def show_cluster_events(*, as_json: bool) -> None:
    """Print all events of the cluster from now on that the token may see."""
    show = _make_printer(of_job=False, as_json=as_json)
    with connect() as cluster:
        for event in cluster.watch():
            show(event)


def _has_ended(cluster: "Cluster", name: str) -> bool:
    return cluster.jobs.get(name).state in ENDED


def _make_printer(*, of_job: bool, as_json: bool) -> Callable[[Event], None]:
    if as_json:
        return print_json
    from elastane.cli.jobs.job_display import describe_job_event

    console = open_console()
    return lambda event: console.print(describe_job_event(event, of_job=of_job))
