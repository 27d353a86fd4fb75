"""The facts about earlier terms that a new coordinator takes from the event log."""

import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from elastane.run.nouns.control import RunOver
from elastane.run.nouns.membership import NodeName, WorkerId
from elastane.run.nouns.records import OUTCOMES, PRINTED, TRAFFIC, EventLine
from elastane.run.observability.line_files import find_end_of_lines
from elastane.run.observability.run_files import decode_event_line

DRAINED_NODE = "node"
"""The name of a detail of a ``drain.requested`` for a whole machine."""
FIRST_NODE_PHRASE = "the first node"
"""The ``who`` of events about the machine without a name."""

GONE = ("node.left", "node.lost")
ENDS = ("worker.died", "worker.hung", "worker.left", "worker.refused", "worker.failed")
"""The kinds of events of which each worker has one."""

WorkerEvents: TypeAlias = frozenset[tuple[str, WorkerId]]


@dataclass(frozen=True, slots=True)
class EventSummary:
    """A summary of ``events.jsonl``.

    Args:
        worker_events: the written ``worker.*`` events, by kind and worker.
        unended: the workers of this attempt without a written end, each with the machine with which the run
            has lost it; empty: it has not.
        keys: the keys of written `elastane.run.nouns.control.WorkerEvent`, with their steps.
        generation: the highest number in any event.
        generation_started: the highest number in a ``generation.started``.
        over: the outcome of the run, once it is written.
        checkpoints: the names of published checkpoints.
        checkpoint_step: the step of the newest checkpoint that this attempt of the run has published.
        traffic_of: the last generation of which the bytes between machines are written.
        printed: how many lines the script has printed.
        drained: the machines that a user has asked to leave, and that are still there.
    """

    worker_events: WorkerEvents = frozenset()
    unended: Mapping[WorkerId, str] = field(default_factory=dict)
    keys: Mapping[str, int | None] = field(default_factory=dict)
    generation: int = 0
    generation_started: int = 0
    over: RunOver | None = None
    checkpoints: frozenset[str] = frozenset()
    checkpoint_step: int = 0
    traffic_of: int = 0
    printed: int = 0
    drained: frozenset[NodeName] = frozenset()


def _update_drained(drained: set[NodeName], event: EventLine) -> None:
    """Add a machine that a user asks to leave; remove one that has gone, or all when an attempt begins."""
    if event.kind == "drain.requested" and DRAINED_NODE in event.detail:
        drained.add(str(event.detail[DRAINED_NODE]))
    elif event.kind in GONE:
        drained.discard("" if event.who == FIRST_NODE_PHRASE else event.who.removeprefix("node "))
    elif event.kind == "run.resumed":
        drained.clear()


def _update_unended(unended: dict[WorkerId, str], event: EventLine) -> None:
    """Add a worker that starts, remove one that ends, and mark those that the run loses with a machine."""
    if event.kind == "run.resumed":
        # All processes of the attempt before have ended with it.
        unended.clear()
    for worker in event.workers:
        if event.kind == "worker.started":
            unended.setdefault(worker, "")
        elif event.kind in ENDS:
            unended.pop(worker, None)
        elif event.kind == "node.lost" and worker in unended:
            unended[worker] = event.who


def find_key_step(event: EventLine) -> int | None:
    """Return the step until which workers may report the event again; None: as long as the run lasts.

    A worker that joins late may find a mistake in the script of which another one has warned long before.
    """
    return None if event.kind == "warning" else event.step


def summarize_events(events: Iterable[EventLine]) -> EventSummary:
    """Summarise the events of a run, in the order of its log."""
    worker_events: set[tuple[str, WorkerId]] = set()
    unended: dict[WorkerId, str] = {}
    keys: dict[str, int | None] = {}
    generation = started = traffic_of = printed = 0
    over = None
    checkpoints: set[str] = set()
    checkpoint_step = 0
    drained: set[NodeName] = set()
    for event in events:
        if event.kind == "run.resumed":
            # Another attempt has its own end, and reports repeated work again.
            over, checkpoint_step = None, 0
            keys.clear()
        if event.kind == "checkpoint.saved":
            checkpoints.add(str(event.detail.get("name", "")))
            checkpoint_step = max(checkpoint_step, int(event.detail.get("step") or 0))
        if event.kind.startswith("worker."):
            worker_events.update((event.kind, worker) for worker in event.workers)
        _update_unended(unended, event)
        if event.key:
            keys[event.key] = find_key_step(event)
        generation = max(generation, event.generation or 0)
        if event.kind == "generation.started":
            started = max(started, event.generation or 0)
        _update_drained(drained, event)
        printed += event.kind == PRINTED
        if event.kind == TRAFFIC:
            traffic_of = max(traffic_of, event.generation or 0)
        if event.kind in OUTCOMES:
            over = RunOver(
                code=OUTCOMES[event.kind], why=event.why, traceback=str(event.detail.get("traceback", ""))
            )
    return EventSummary(
        worker_events=frozenset(worker_events),
        unended=unended,
        keys=keys,
        generation=generation,
        generation_started=started,
        over=over,
        checkpoints=frozenset(checkpoints),
        checkpoint_step=checkpoint_step,
        traffic_of=traffic_of,
        printed=printed,
        drained=frozenset(drained),
    )


# The part of ``events.jsonl`` that a new coordinator reads: the last events, and every change before
# them.
#
# A run of a million steps has hundreds of megabytes of events, and a change of membership waits for the
# read.


TAIL_BYTES = 1 << 20
CHANGE = re.compile(rb'"kind":"(?!message"|evaluation")')
"""A pattern of lines about changes, but not of lines that scripts print: texts have escaped quotes."""


def read_changes(path: Path) -> Iterator[EventLine]:
    """Yield the events about changes in order, and every event of the last mebibyte.

    Args:
        path: the path of a file of whole lines.

    Raises:
        OSError: the file cannot be read.
        Malformed: a line is not a valid event.
    """
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        if end == 0:
            return
        tail = find_end_of_lines(file.fileno(), max(0, end - TAIL_BYTES))
        lines = mmap.mmap(file.fileno(), end, prot=mmap.PROT_READ)
    with lines:
        for found in CHANGE.finditer(lines, 0, tail):
            start = lines.rfind(b"\n", 0, found.start()) + 1
            yield decode_event_line(lines[start : lines.find(b"\n", start)])
        for line in lines[tail:end].splitlines():
            yield decode_event_line(line)
