"""``elastane describe``: all details of a job."""

import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from elastane.cli.command import AsJson, JobName, open_console, print_json
from elastane.cli.timestamps import format_timestamp
from elastane.cluster.client.context import connect, find_dashboard_url
from elastane.cluster.nouns.controller import Health
from elastane.cluster.nouns.history import Event
from elastane.cluster.nouns.job_records import ENDED
from elastane.cluster.nouns.job_words import (
    awaits_next_attempt,
    format_age,
    format_job_loss,
    format_job_speed,
    format_job_step,
    format_job_workers,
)
from elastane.cluster.nouns.rest import Job
from elastane.cluster.scheduler.wording import format_money
from elastane.common.connections.controller_context import find_context

if TYPE_CHECKING:
    from rich.text import Text

SHOWN = 8
"""The most events that are shown; elastane events shows all."""


def describe(job: JobName, as_json: AsJson = False) -> None:
    """Show all details of JOB.

    They include its size and the reasons for it, progress, cost and last events.

    With --json, the job with its spec.
    """
    with connect() as cluster:
        found = cluster.jobs.get(job)
        if as_json:
            print_json(found)
            return
        events = deque(cluster.jobs.events(job), maxlen=SHOWN)
        health = cluster.health()
    print_job(found, list(events), health)


def print_job(job: Job, events: list[Event], health: Health) -> None:
    from rich.table import Table
    from rich.text import Text

    from elastane.cli.jobs.job_display import describe_job_event, list_explanation_lines, print_health
    from elastane.cli.tables import UNBOUNDED, print_wide
    from elastane.common.safe_text import fold_text

    console = open_console()
    if job.state not in ENDED:
        # The facts below may be out of date.
        print_health(console, health)
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for title, value in list_facts(job):
        grid.add_row(title, Text(fold_text(value, UNBOUNDED)) if isinstance(value, str) else value)
    print_wide(console, grid)
    if job.state not in ENDED:
        console.print()
        for line in list_explanation_lines(job.explained):
            console.print(Text(line))
    if events:
        console.print()
        for event in events:
            console.print(describe_job_event(event, of_job=True))
    if job.traceback:
        console.print()
        console.print_quoted(job.traceback)


def list_facts(job: Job) -> "Iterator[tuple[str, str | Text]]":
    """Return the titles and values of all known facts about a job."""
    from elastane.cli.jobs.job_display import render_state

    spec, now_s = job.spec, time.time()
    owner = f"{job.team}, submitted by {job.user}"
    pairs: list[tuple[str, str | Text]] = [
        ("name", job.name),
        ("state", render_state(job, now_s)),
        ("next attempt", format_timestamp(job.retry_at_s) if awaits_next_attempt(job, now_s) else ""),
        ("why" if job.state in ENDED else "last attempt", job.why),
        ("team", owner + (f", queue {job.queue}" if job.queue else "")),
        ("priority", job.priority_class),
        ("workers", format_job_workers(job)),
        ("pools", ", ".join(f"{pool}: {workers}" for pool, workers in job.grant.workers.items())),
        ("each worker", format_resources(job)),
        ("step", format_job_step(job)),
        ("loss", format_job_loss(job)),
        ("samples/s", format_job_speed(job)),
        ("by workers", ", ".join(f"{count}: {speed:,.0f}/s" for count, speed in job.observed.speeds)),
        *list_agent_facts(job),
        ("program", " ".join(spec.program)),
        ("image", spec.image),
        ("directory", spec.working_dir),
        ("code", f"{spec.code}, sent with the job" if spec.code else ""),
        ("data", format_data(job)),
        ("deadline", "" if spec.deadline is None else format_timestamp(spec.deadline.timestamp())),
        ("target", format_target(job)),
        ("time limit", format_time_limit(job, now_s)),
        ("cost", format_cost(job, now_s)),
        ("changes", format_attempts(job)),
        ("submitted", f"{format_timestamp(job.submitted_s)}, {format_age(now_s - job.submitted_s)} ago"),
        ("started", format_timestamp(job.started_s)),
        ("ended", format_timestamp(job.ended_s)),
        ("run", job.run_dir),
        ("page", _find_page(job.name)),
    ]
    return ((title, value) for title, value in pairs if value)


def _find_page(job: str) -> str:
    """Return the address of the page of a job; empty: no dashboard is known here."""
    url = find_dashboard_url(find_context().url)
    return f"{url}/jobs/{job}" if url else ""


AGENT_STATES = {
    "asked": "asked for",
    "pending": "waits in the queue of its engine",
    "running": "starts",
    "arrived": "takes part",
    "leaving": "leaves",
}


def list_agent_facts(job: Job) -> "Iterator[tuple[str, str]]":
    """Return a line about each agent: where it is, and its state."""
    for number, agent in enumerate(job.agents):
        place = f"{agent.engine}.{agent.node}" if agent.node else agent.engine
        why = f": {agent.why}" if agent.why else ""
        state = AGENT_STATES.get(agent.state, agent.state)
        size = f" with {agent.workers} workers" if agent.workers > 1 else ""
        yield "" if number else "agents", f"{agent.id}{size} in {agent.pool} on {place} {state}{why}"


def format_resources(job: Job) -> str:
    """Return the processes and devices of each worker, and the terms on which the job takes them."""
    spec, count = job.spec, job.spec.worker_devices
    several = [f"{spec.worker_processes} processes"] if spec.worker_processes > 1 else []
    kinds = f" of {' or '.join(spec.resources_per_worker.kinds)}" if spec.resources_per_worker.kinds else ""
    terms = [*(["also spot"] if spec.spot else []), *([] if spec.borrow else ["never borrowed"])]
    return ", ".join([*several, f"{count} device{'s' * (count > 1)}{kinds}", *terms])


def format_data(job: Job) -> str:
    """Return the sites, regions and labels of pools that can read the data; empty if every pool can."""
    data = job.spec.data
    sites = [f"at {' and '.join(data.sites)}"] if data.sites else []
    regions = [" or ".join(data.regions)] if data.regions else []
    return ", ".join([*sites, *regions, *(f"{key}={value}" for key, value in data.labels.items())])


def format_target(job: Job) -> str:
    """Return the target of a job: the loss that ends it, and the throughput that is enough."""
    target = job.spec.target
    by = "" if target.by is None else f" by {format_timestamp(target.by.timestamp())}"
    loss = [] if target.loss is None else [f"loss {target.loss:g}{by}"]
    speed = [] if target.throughput is None else [f"{target.throughput:g} samples/s"]
    return ", ".join(loss + speed)


def format_time_limit(job: Job, now_s: float) -> str:
    """Return how long a job may hold devices, and how long it has; empty without a limit."""
    limit_s = job.spec.run_policy.active_deadline_seconds
    if limit_s is None:
        return ""
    since_s = now_s if job.active_since_s is None else job.active_since_s
    return f"{format_age(job.active_s + now_s - since_s)} of {format_age(limit_s)} used"


def format_cost(job: Job, now_s: float) -> str:
    """Return the cost so far, its part for bytes between sites, and the budget; empty if there is neither."""
    spent, budget = job.compute_spent(now_s), job.spec.budget
    if not spent and budget is None:
        return ""
    egress = f" ({format_money(job.egress_spent)} for egress)" if job.egress_spent else ""
    return format_money(spent) + ("" if budget is None else f" of {format_money(budget)}") + egress


def format_attempts(job: Job) -> str:
    """Return how often the job crashed, was preempted or resized."""
    counts = [
        (job.crashes, "crashed"),
        # A preemption may have other causes than another job: a node that goes away, for example.
        (job.preemptions, "preempted"),
        (job.resizes, "resized"),
    ]
    return ", ".join(
        f"{what} {'once' if count == 1 else f'{count} times'}" for count, what in counts if count
    )
