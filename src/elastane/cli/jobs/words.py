"""Jobs, their events and their times as the command line says them."""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from elastane.api.durations import format_duration
from elastane.api.health import HealthProblem
from elastane.api.history import Event
from elastane.api.job_records import Explanation, Wanted
from elastane.api.rest import JobSummary
from elastane.api.safe_text import escape_line, fold_text
from elastane.cli.tables import UNBOUNDED, build_table
from elastane.cli.timestamps import format_timestamp, localize_timestamps
from elastane.cli.words import loss_text

COLOURS = {
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
LEAVING: dict[Wanted, str] = {
    "pause": "pausing",
    "cancel": "cancelling",
    "finish": "finishing",
    "fail": "failing",
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
RIGHT = frozenset(
    {"step", "loss", "age", "samples/s", "devices", "used", "free", "leaving", "reserved", "price"}
)


def state_of(job: JobSummary) -> str:
    """Where it is, and whether somebody wants it elsewhere."""
    return LEAVING.get(job.wanted, job.state) if job.state == "running" else job.state


def awaits_next_try(job: JobSummary, now_s: float) -> bool:
    """It has crashed: its devices stay its own, and nothing trains on them."""
    return state_of(job) == "running" and job.retry_at_s > now_s


def state_text(job: JobSummary, now_s: float) -> Text:
    if awaits_next_try(job, now_s):
        return Text(f"next try in {format_age(math.ceil(job.retry_at_s - now_s))}", style="red")
    state = state_of(job)
    return Text(state, style=COLOURS[state])


def workers_text(job: JobSummary) -> str:
    """Those it has, and the fewest and most that it may have."""
    limits = f"{job.min_workers}:{job.max_workers}"
    return f"{job.workers} of {limits}" if job.state == "running" else limits


def step_text(job: JobSummary) -> str:
    if not job.step:
        return ""
    return f"{job.step}" + (f"/{job.steps}" if job.steps else "")


def loss_of(job: JobSummary) -> str:
    return "" if job.loss is None else loss_text(job.loss)


def speed_text(job: JobSummary) -> str:
    return f"{job.samples_per_s:,.0f}" if job.samples_per_s else ""


def format_age(seconds: float) -> str:
    """Return a duration in its largest unit, without tenths of seconds: ``45 s``, ``3 min``, ``2 d``."""
    return format_duration(math.floor(seconds), parts=1)


def event_text(event: Event, *, of_job: bool) -> Text:
    """One event on one line.

    Args:
        event: what happened.
        of_job: all are about one job, which need not be named.
    """
    who = "" if of_job or event.job in event.message else f"{event.job}  "
    return Text.assemble(
        (f"{datetime.fromtimestamp(event.time_s).astimezone():%H:%M:%S}  ", "dim"),
        (f"{fold_text(event.kind):<14}", EVENT_COLOURS.get(event.kind, "")),
        f"  {fold_text(who, UNBOUNDED)}{fold_text(localize_timestamps(event.message), UNBOUNDED)}",
    )


def progress_line(job: JobSummary) -> Text:
    """How far a job is, on a line for a log."""
    words = [f"step {step_text(job)}", f"loss {loss_of(job)}"]
    if job.workers:
        words.append(f"{job.workers} of {job.max_workers} workers")
    if job.samples_per_s:
        words.append(f"{speed_text(job)} samples/s")
    return Text("          " + "  ".join(words))


def explanation_lines(explanation: Explanation) -> Sequence[str]:
    """Why a job has the size it has, for the terminal."""
    if not explanation.sentences:
        return ("No plan has been made since it was submitted.",)
    return [fold_text(localize_timestamps(sentence), UNBOUNDED) for sentence in explanation.sentences]


def jobs_table(jobs: Iterable[JobSummary], now_s: float) -> Table:
    """Jobs, one per row; a column with nothing in it is left out, that of users where there is one."""
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
            state_text(job, now_s),
            Text(workers_text(job)),
            Text(step_text(job)),
            Text(loss_of(job)),
            Text(format_age(now_s - job.submitted_s)),
        ]
        for job in found
    ]
    return build_table(titles, rows, numbers=RIGHT)


def health_lines(problems: Sequence[HealthProblem], now_s: float) -> list[Text]:
    """Say what is wrong with the controller, since when, and what to do about it.

    Args:
        problems: of its health; none, if it is an older one that does not tell them.
        now_s: seconds since 1970.
    """
    head = "the controller works only in part; jobs go on as they are"
    if not problems:
        return [Text(f"{head}. Its log says why.", style="red")]
    lines = [Text(f"{head}:", style="red")]
    for problem in problems:
        since = f"since {format_timestamp(problem.since_s)}, {format_age(max(0.0, now_s - problem.since_s))}"
        lines.append(Text(f"  {escape_line(problem.what)} ({since})", style="red"))
        lines.append(Text(f"    do: {escape_line(problem.do)}"))
    return lines
