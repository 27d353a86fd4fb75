"""Events of jobs of the cluster, past ones or live."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from elastane.cli.command import open_console, print_json
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.history import Event
from elastane.cluster.nouns.job_records import ENDED

if TYPE_CHECKING:
    from elastane.cluster.client.cluster import Cluster

LAST = frozenset({"job.finished", "job.failed", "job.cancelled"})


def show_job_events(name: str, *, follow: bool, as_json: bool) -> None:
    """Print the events of one job; with ``follow`` until the job has ended."""
    show = _make_printer(of_job=True, as_json=as_json)
    with connect() as cluster:
        after = 0
        for event in cluster.jobs.events(name):
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
