"""Display of jobs of a cluster: their states, numbers, events and explanations as text."""

import math
import time
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from elastane.cli.tables import UNBOUNDED, build_table, print_wide
from elastane.cli.timestamps import format_timestamp, localize_timestamps
from elastane.cluster.nouns.controller import Health, HealthProblem
from elastane.cluster.nouns.history import Event
from elastane.cluster.nouns.job_records import Explanation
from elastane.cluster.nouns.job_words import (
    awaits_next_attempt,
    find_shown_state,
    format_age,
    format_job_loss,
    format_job_speed,
    format_job_step,
    format_job_workers,
)
from elastane.cluster.nouns.rest import JobSummary
from elastane.common.safe_text import escape_line, fold_text

STATE_COLOURS = {
    "queued": "yellow",
    "running": "green",
    "pausing": "yellow",
    "cancelling": "yellow",
    "finishing": "bright_blue",
    "failing": "red",
    "paused": "yellow",
    "finished": "bright_blue",
    "failed": "red",
    "cancelled": "dim",
}
EVENT_COLOURS = {
    "job.started": "green",
    "job.running": "green",
    "job.grown": "green",
    "job.shrunk": "yellow",
    "job.moved": "blue",
    "job.preempted": "yellow",
    "job.stopping": "yellow",
    "job.ending": "yellow",
    "job.paused": "yellow",
    "job.resumed": "green",
    "job.held_up": "red",
    "job.crashed": "red",
    "job.failed": "red",
    "job.finished": "bright_blue",
    "job.cancelled": "yellow",
}
NUMBER_COLUMNS = frozenset(
    {"step", "loss", "age", "samples/s", "devices", "used", "free", "leaving", "reserved", "price"}
)


def render_state(job: JobSummary, now_s: float) -> Text:
    if awaits_next_attempt(job, now_s):
        return Text(f"next attempt in {format_age(math.ceil(job.retry_at_s - now_s))}", style="red")
    state = find_shown_state(job)
    return Text(state, style=STATE_COLOURS[state])


def describe_job_event(event: Event, *, of_job: bool) -> Text:
    """Return an event of a job as one line; with ``of_job`` without the name of the job."""
    name = "" if of_job or event.job in event.message else f"{event.job}  "
    return Text.assemble(
        (f"{datetime.fromtimestamp(event.time_s).astimezone():%H:%M:%S}  ", "dim"),
        (f"{fold_text(event.kind):<14}", EVENT_COLOURS.get(event.kind, "")),
        f"  {fold_text(name, UNBOUNDED)}{fold_text(localize_timestamps(event.message), UNBOUNDED)}",
    )


def describe_job_progress(job: JobSummary) -> Text:
    """Return the progress of a job as a line for a log."""
    words = [f"step {format_job_step(job)}", f"loss {format_job_loss(job)}"]
    if job.workers:
        words.append(f"{job.workers} of {job.max_workers} workers")
    if job.samples_per_s:
        words.append(f"{format_job_speed(job)} samples/s")
    return Text("          " + "  ".join(words))


def list_explanation_lines(explanation: Explanation) -> Sequence[str]:
    """Return the explanation of the size of a job as lines for the terminal."""
    if not explanation.sentences:
        return ("The scheduler has not planned since the job was submitted.",)
    return [fold_text(localize_timestamps(sentence), UNBOUNDED) for sentence in explanation.sentences]


def build_jobs_table(jobs: Iterable[JobSummary], now_s: float) -> Table:
    """Return a table of jobs without its empty columns; users are shown only if there are several."""
    found = list(jobs)
    several = len({job.user for job in found}) > 1
    titles = ["name", "team", "user", "queue", "priority", "state", "workers", "step", "loss", "age"]
    rows = [
        [
            Text(job.name),
            Text(job.team),
            Text(job.user if several else ""),
            Text(job.queue),
            Text(job.priority_class),
            render_state(job, now_s),
            Text(format_job_workers(job)),
            Text(format_job_step(job)),
            Text(format_job_loss(job)),
            Text(format_age(now_s - job.submitted_s)),
        ]
        for job in found
    ]
    return build_table(titles, rows, numbers=NUMBER_COLUMNS)


def print_health(console: Console, health: Health) -> None:
    """Print the problems of the controller, if it has any."""
    if health.status == "failing":
        for line in list_health_lines(health.problems, time.time()):
            print_wide(console, line)


def list_health_lines(problems: Sequence[HealthProblem], now_s: float) -> list[Text]:
    """Return lines about the problems of the controller: what, since when, and what to do.

    Args:
        now_s: seconds since 1970.
    """
    lines = [Text("the controller is partly failing; jobs continue unchanged:", style="red")]
    for problem in problems:
        since = f"since {format_timestamp(problem.since_s)}, {format_age(max(0.0, now_s - problem.since_s))}"
        lines.append(Text(f"  {escape_line(problem.what)} ({since})", style="red"))
        lines.append(Text(f"    do: {escape_line(problem.do)}"))
    return lines
