"""The words and colours of run events, for the card, the chart, the report and the command line."""

from collections.abc import Collection
from typing import Literal, TypeAlias

import msgspec

from elastane.run.nouns.records import EventLine
from elastane.run.observability.drawing import format_number
from elastane.run.observability.evaluations import KIND, describe_evaluation

Tone: TypeAlias = Literal["good", "warn", "bad", "core", "ask", "score", "kept", "start"]


class RunEventKind(msgspec.Struct, frozen=True):
    """How events of one kind are shown.

    Args:
        tone: colour class on the chart, and key of the colour on a terminal.
        label: short words for the legend of the chart.
        counted: the words after a number on the card, ``{s}`` for the plural; empty: not on the card.
    """

    tone: Tone
    label: str = ""
    counted: str = ""


RUN_EVENTS = {
    "worker.joined": RunEventKind("good", "joined", "joined"),
    "worker.left": RunEventKind("warn", "left", "left"),
    "worker.died": RunEventKind("bad", "died", "died"),
    "worker.hung": RunEventKind("bad", "hung", "hung"),
    "worker.failed": RunEventKind("bad", "failed"),
    "worker.refused": RunEventKind("bad", "refused", "refused"),
    "node.joined": RunEventKind("good", "node joined", "node{s} joined"),
    "node.refused": RunEventKind("warn", "node refused", "node{s} refused"),
    "node.closed": RunEventKind("warn", "node gets no further workers", "node{s} without further workers"),
    "node.left": RunEventKind("warn", "node left", "node{s} left"),
    "node.lost": RunEventKind("bad", "node lost", "node{s} lost"),
    "coordinator.died": RunEventKind("core", "coordinator died", "coordinator death{s}"),
    "generation.started": RunEventKind("start"),
    "resize.requested": RunEventKind("ask", "resize requested"),
    "drain.requested": RunEventKind("ask", "drain requested"),
    "stop.announced": RunEventKind("warn", "stop announced", "restart{s}"),
    "stop.requested": RunEventKind("ask", "stop requested"),
    "shares.rebalanced": RunEventKind("core", "rebalanced", "rebalanced"),
    "evaluation": RunEventKind("score", "evaluation"),
    "warning": RunEventKind("warn"),
    "ledger.stalled": RunEventKind("bad", "ledger stalled", "stall{s} of the ledger"),
    "data.awaited": RunEventKind("warn", "waits for data"),
    "claim.waiting": RunEventKind("warn", "waits for the claim list"),
    "generation.unheard": RunEventKind("bad", "unheard"),
    "checkpoint.saved": RunEventKind("kept"),
    "checkpoint.restored": RunEventKind("kept"),
    "checkpoint.failing": RunEventKind(
        "bad", "storage refuses a checkpoint", "refusal{s} of a checkpoint by the storage"
    ),
    "checkpoint.abandoned": RunEventKind("warn", "checkpoint abandoned", "checkpoint{s} abandoned"),
    "model.failing": RunEventKind(
        "bad", "a worker cannot write the model", "refusal{s} of the model by the storage"
    ),
    "run.resumed": RunEventKind("good", "resumed", "resume{s}"),
    "run.finished": RunEventKind("good"),
    "run.failed": RunEventKind("bad", "run failed"),
    "run.stopped": RunEventKind("warn", "run stopped", "stopped"),
}
"""The kinds of events that are more than a row of a table. The card and the legend keep this order."""

SELF_EXPLANATORY = ("checkpoint.", "traffic.", "run.resumed")
"""Kinds of events, or prefixes of kinds, whose ``why`` contains the facts of their details."""


def name_event_source(event: EventLine) -> str:
    """Return the process of an event; for the start of a generation its members, not the coordinator."""
    if event.kind != "generation.started" and event.who:
        return event.who
    if not event.workers:
        return event.who
    return f"worker{'s' * (len(event.workers) > 1)} {', '.join(map(str, event.workers))}"


def describe_event_details(event: EventLine, *, left_out: Collection[str] = ("traceback",)) -> str:
    """Return the details of an event as text; empty if its ``why`` contains them.

    Args:
        left_out: names of details that are too long or too technical.
    """
    if event.kind.startswith(SELF_EXPLANATORY):
        return ""
    if event.kind == KIND:
        return describe_evaluation(event)
    pairs = ((name, value) for name, value in event.detail.items() if name not in left_out)
    return ", ".join(f"{name} {format_event_value(value)}" for name, value in pairs)


def format_event_value(value: float | str | None) -> str:
    """Return a detail as text; None stands for infinity and NaN, which JSON does not have."""
    if value is None:
        return "not finite"
    return str(value) if isinstance(value, (str, int)) else format_number(value)
