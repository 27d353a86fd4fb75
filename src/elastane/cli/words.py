"""Texts for events, steps and losses of a run."""

from collections.abc import Sequence

import msgspec
from rich.text import Text

from elastane.api.durations import format_duration
from elastane.api.records import EventLine
from elastane.api.safe_text import fold_text
from elastane.cli.runs.progress import Progress
from elastane.cli.tables import UNBOUNDED
from elastane.observability.attempts import find_restored
from elastane.observability.evaluations import KIND, describe_evaluation
from elastane.observability.quantities import format_transfer_speed

COLOURS = {
    "worker.joined": "green",
    "worker.left": "yellow",
    "worker.died": "red",
    "worker.hung": "red",
    "worker.failed": "red",
    "worker.refused": "red",
    "coordinator.died": "magenta",
    "ledger.stalled": "red",
    "data.awaited": "yellow",
    "checkpoint.saved": "cyan",
    "checkpoint.restored": "cyan",
    "checkpoint.failing": "red",
    "checkpoint.abandoned": "yellow",
    "model.failing": "red",
    "run.resumed": "green",
    "run.failed": "red",
    "run.finished": "green",
    "run.stopped": "yellow",
    "evaluation": "cyan",
    "warning": "yellow",
    "generation.started": "blue",
}

NOT_FOR_A_LINE = frozenset({"traceback", "pid", "term", "parameters_sha256", "optimizer_sha256"})
"""Details that are left out of a line because they are too long or too technical."""


TOLD_IN_WORDS = ("checkpoint.", "run.resumed")
"""Kinds of events, or prefixes of kinds, whose ``why`` already says in words what the details say."""


def event_text(event: EventLine) -> Text:
    """Return an event as one line: step, kind, process, details, reason, and the longest pause."""
    where = "" if event.step is None else f"step {event.step}"
    words = [who_text(event), detail_text(event), event.why, pause_text(event)]
    return Text.assemble(
        (f"{where:>10}  ", "dim"),
        (fold_text(event.kind), COLOURS.get(event.kind, "")),
        "  ",
        fold_text("; ".join(word for word in words if word), UNBOUNDED),
    )


def restored_event(events: Sequence[EventLine]) -> EventLine:
    """Return one event that sums up what all workers of a new attempt have read from the checkpoint.

    Args:
        events: ``checkpoint.restored`` of each worker, at least one.
    """
    restored = find_restored(events)
    assert restored is not None, "somebody has read it"
    each = f"{restored.workers} worker{'s' * (restored.workers > 1)}"
    name = events[-1].detail.get("name", "the checkpoint")
    why = f"{name}: {format_transfer_speed(restored.bytes, restored.seconds)} on {each}"
    return msgspec.structs.replace(events[-1], who="", workers=(), why=why)


def who_text(event: EventLine) -> str:
    """Return the process of an event; for the start of a generation its members, not the coordinator."""
    if event.kind != "generation.started" and event.who:
        return event.who
    if not event.workers:
        return event.who
    return f"worker{'s' * (len(event.workers) > 1)} {', '.join(map(str, event.workers))}"


def detail_text(event: EventLine) -> str:
    if event.kind.startswith(TOLD_IN_WORDS):
        return ""
    if event.kind == KIND:
        return describe_evaluation(event)
    pairs = ((name, value) for name, value in event.detail.items() if name not in NOT_FOR_A_LINE)
    return ", ".join(f"{name} {value_text(value)}" for name, value in pairs)


def value_text(value: float | str | None) -> str:
    """Return a detail as text; None stands for infinity and NaN, which JSON does not have."""
    if value is None:
        return "not finite"
    return str(value) if isinstance(value, (str, int)) else f"{value:.6g}"


def pause_text(event: EventLine) -> str:
    if not event.pause_ms:
        return ""
    worker = max(event.pause_ms, key=event.pause_ms.__getitem__)
    steps = event.pause_steps.get(worker)
    usual = "" if steps is None else f" ({steps:.2f} steps)"
    return f"longest pause {event.pause_ms[worker]:.0f} ms{usual}"


def step_text(progress: Progress) -> str:
    """Return the progress and speed of a run as one line for a log."""
    line = progress.line
    if line is None:
        return "waiting for the first step"
    count = len(line.workers)
    words = [
        f"step {line.step}" + (f"/{progress.steps}" if progress.steps else ""),
        f"loss {loss_text(line.loss)}",
        f"{count} {'worker' if count == 1 else 'workers'}",
        f"{progress.samples_per_s:,.0f} samples/s",
    ]
    if progress.left_s:
        words.append(f"{format_duration(progress.left_s)} left")
    return "  ".join(words)


def loss_text(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.4f}"
