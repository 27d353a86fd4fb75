"""What earlier coordinators of the run have written down, as far as a new one must know it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from elastane.api.control import RunOver
from elastane.api.exit_codes import ExitCode
from elastane.api.membership import WorkerId
from elastane.api.records import EventLine

RecordedEvents: TypeAlias = frozenset[tuple[str, WorkerId]]

OUTCOMES = {
    "run.finished": ExitCode.OK,
    "run.failed": ExitCode.FAILED,
    "run.stopped": ExitCode.STOPPED_BY_USER,
}


@dataclass(frozen=True, slots=True)
class EventSummary:
    """A summary of ``events.jsonl``.

    Args:
        noted: ``worker.*`` events already written, by kind and worker.
        keys: of `elastane.api.control.WorkerEvent`, already written, with their steps.
        generation: highest number in any event.
        generation_started: highest number in a ``generation.started``.
        over: the outcome, once it has been written.
        kept: names of the checkpoints written.
        kept_step: of the newest of them that the present attempt of the run has written.
    """

    noted: RecordedEvents = frozenset()
    keys: Mapping[str, int | None] = field(default_factory=dict)
    generation: int = 0
    generation_started: int = 0
    over: RunOver | None = None
    kept: frozenset[str] = frozenset()
    kept_step: int = 0


def summarize_events(events: Iterable[EventLine]) -> EventSummary:
    noted: set[tuple[str, WorkerId]] = set()
    keys: dict[str, int | None] = {}
    generation = started = 0
    over = None
    kept: set[str] = set()
    kept_step = 0
    for event in events:
        if event.kind == "run.resumed":
            # Another attempt: it has an end of its own, and what is done again is told again.
            over, kept_step = None, 0
            keys.clear()
        if event.kind == "checkpoint.saved":
            kept.add(str(event.detail.get("name", "")))
            kept_step = max(kept_step, int(event.detail.get("step") or 0))
        if event.kind.startswith("worker."):
            noted.update((event.kind, worker) for worker in event.workers)
        if event.key:
            keys[event.key] = event.step
        generation = max(generation, event.generation or 0)
        if event.kind == "generation.started":
            started = max(started, event.generation or 0)
        if event.kind in OUTCOMES:
            over = RunOver(
                code=OUTCOMES[event.kind], why=event.why, traceback=str(event.detail.get("traceback", ""))
            )
    return EventSummary(frozenset(noted), keys, generation, started, over, frozenset(kept), kept_step)
