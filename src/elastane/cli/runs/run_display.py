"""Display of a run on a terminal: its events and its progress, each as one line."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from rich.text import Text

from elastane.cli.runs.progress import Progress
from elastane.cli.tables import UNBOUNDED
from elastane.common.durations import format_duration
from elastane.common.safe_text import fold_text
from elastane.run.nouns.records import EventLine
from elastane.run.observability.attempts import find_restored
from elastane.run.observability.quantities import format_loss, format_transfer_speed
from elastane.run.observability.run_events import RUN_EVENTS, Tone, describe_event_details, name_event_source

TERMINAL_COLOURS: dict[Tone, str] = {
    "good": "green",
    "warn": "yellow",
    "bad": "red",
    "core": "magenta",
    "score": "cyan",
    "kept": "cyan",
    "start": "blue",
}

MOST_LOGGED = 6
"""Logged values in a line; the ledger and the report have all."""
NOT_FOR_A_LINE = frozenset({"traceback", "pid", "term", "parameters_sha256", "optimizer_sha256"})
"""Details that are left out of a line because they are too long or too technical."""


def describe_run_event(event: EventLine, *, timed: bool = False) -> Text:
    """Return an event of a run as one line: step, kind, process, details, reason, and the longest pause.

    With ``timed`` the line begins with the time of day, because the run has no steps.
    """
    where = "" if event.step is None else f"step {event.step}"
    if timed:
        where = f"{datetime.fromtimestamp(event.time).astimezone():%H:%M:%S}"
    details = describe_event_details(event, left_out=NOT_FOR_A_LINE)
    words = [name_event_source(event), details, event.why, format_event_pause(event)]
    return Text.assemble(
        (f"{where:>10}  ", "dim"),
        (fold_text(event.kind), find_event_colour(event.kind)),
        "  ",
        fold_text("; ".join(word for word in words if word), UNBOUNDED),
    )


def find_event_colour(kind: str) -> str:
    """Return the colour of a kind of events on a terminal; empty: the usual one."""
    return TERMINAL_COLOURS.get(RUN_EVENTS[kind].tone, "") if kind in RUN_EVENTS else ""


def combine_restored_events(events: Sequence[EventLine]) -> EventLine:
    """Return one event that sums up what the workers of a new attempt, at least one, have read."""
    restored = find_restored(events)
    assert restored is not None, "no worker has read the checkpoint"
    each = f"{restored.workers} worker{'s' * (restored.workers > 1)}"
    name = events[-1].detail.get("name", "the checkpoint")
    why = f"{name}: {format_transfer_speed(restored.bytes, restored.seconds)} on {each}"
    return msgspec.structs.replace(events[-1], who="", workers=(), why=why)


def format_event_pause(event: EventLine) -> str:
    """Return the longest pause of a healthy worker as text; empty if none paused."""
    if not event.pause_ms:
        return ""
    worker = max(event.pause_ms, key=event.pause_ms.__getitem__)
    steps = event.pause_steps.get(worker)
    usual = "" if steps is None else f" ({steps:.2f} steps)"
    return f"longest pause {event.pause_ms[worker]:.0f} ms{usual}"


def format_logged(values: Mapping[str, float | None]) -> list[str]:
    """Return the first logged values of a step as words for a line."""
    shown = [f"{name} {value:.4g}" for name, value in values.items() if value is not None]
    return [*shown[:MOST_LOGGED], *(["..."] if len(shown) > MOST_LOGGED else [])]


def describe_run_progress(progress: Progress) -> str:
    """Return the progress and speed of a run as one line for a log."""
    line = progress.line
    if line is None:
        return "waiting for the first step"
    count = len(line.workers)
    words = [
        f"step {line.step}" + (f"/{progress.steps}" if progress.steps else ""),
        f"loss {format_loss(line.loss)}",
        *format_logged(line.logged),
        f"{count} {'worker' if count == 1 else 'workers'}",
        f"{progress.samples_per_s:,.0f} samples/s",
    ]
    if progress.left_s:
        words.append(f"{format_duration(progress.left_s)} left")
    return "  ".join(words)
