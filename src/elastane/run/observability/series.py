"""The curves of a run over its steps, thinned so that the page stays small and keeps every spike."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeVar

import msgspec

from elastane.run.nouns.records import PRINTED, EventLine, LedgerLine
from elastane.run.observability.drawing import LARGEST
from elastane.run.observability.facts import read_step_ms

T = TypeVar("T")

MOST_POINTS = 1400
"""The most points of a curve, more than a wide screen has columns."""


class Point(msgspec.Struct, frozen=True):
    """One step; ``loss`` is None if it was not finite, ``smooth`` is the smoothed loss."""

    step: int
    loss: float | None
    smooth: float | None
    workers: int
    step_ms: float


class Lane(msgspec.Struct, frozen=True):
    """The work of one worker: ``[first step, last step, virtual ranks]`` for each stretch of equal shares."""

    worker: int
    stretches: tuple[tuple[int, int, int], ...]


def build_points(ledger: Sequence[LedgerLine]) -> list[Point]:
    losses = [line.loss if line.loss is not None and abs(line.loss) <= LARGEST else None for line in ledger]
    return [
        Point(line.step, loss, smooth, len(line.workers), read_step_ms(line))
        for line, loss, smooth in zip(ledger, losses, smooth_losses(losses), strict=True)
    ]


def smooth_losses(losses: Sequence[float | None]) -> list[float | None]:
    """Return the mean loss around each step, over about a fortieth of the run; near the ends over less.

    The window is always centred, because a one-sided mean would show changes of the loss too late.
    """
    reach = len(losses) // 80
    sums = [0.0, *accumulate(0.0 if loss is None else loss for loss in losses)]
    counts = [0, *accumulate(loss is not None for loss in losses)]
    curve: list[float | None] = []
    for place, loss in enumerate(losses):
        near = min(reach, place, len(losses) - 1 - place)
        low, high = place - near, place + near + 1
        mean = (sums[high] - sums[low]) / max(1, counts[high] - counts[low])
        curve.append(None if loss is None else mean)
    return curve


def thin_points(points: Sequence[T], height: Callable[[T], float], most: int = MOST_POINTS) -> list[T]:
    """Return at most ``most`` points: the lowest and the highest of each stretch, and the last of all."""
    if len(points) <= most:
        return list(points)
    stretches = max(1, (most - 1) // 2)
    chosen: list[int] = []
    for i in range(stretches):
        places = range(len(points) * i // stretches, len(points) * (i + 1) // stretches)
        heights = {place: height(points[place]) for place in places}
        chosen += sorted({min(places, key=heights.__getitem__), max(places, key=heights.__getitem__)})
    if chosen[-1] != len(points) - 1:
        chosen.append(len(points) - 1)
    return [points[place] for place in chosen]


def find_sizes(ledger: Sequence[LedgerLine]) -> list[tuple[int, int]]:
    """Return ``(step, workers)`` for the first step and every change of the number of workers."""
    changes: list[tuple[int, int]] = []
    for line in ledger:
        if not changes or changes[-1][1] != len(line.workers):
            changes.append((line.step, len(line.workers)))
    return changes


def build_lanes(ledger: Sequence[LedgerLine]) -> list[Lane]:
    """Return the shares that each worker computed."""
    lanes: dict[int, list[tuple[int, int, int]]] = {}
    for line in ledger:
        for worker, spans in line.workers.items():
            lane = lanes.setdefault(worker, [])
            ranks = sum(stop - start for start, stop in spans)
            if lane and lane[-1][1] == line.step - 1 and lane[-1][2] == ranks:
                lane[-1] = (lane[-1][0], line.step, ranks)
            else:
                lane.append((line.step, line.step, ranks))
    return [Lane(worker, tuple(lane)) for worker, lane in sorted(lanes.items())]


OWN_STEP = frozenset(
    {
        "generation.started",
        "evaluation",
        "message",
        PRINTED,
        "warning",
        "digest",
        "run.resumed",
        "checkpoint.restored",
    }
)
"""Kinds of events that are written later than the step that they are about."""


def find_step(event: EventLine, ledger: Sequence[LedgerLine]) -> int:
    """Return the step that an event belongs to.

    The coordinator learns of steps some time after their commits, so the number that it writes into an event
    may lag. The times in the ledger tell which step the workers were in.
    """
    if event.step is not None and event.kind in OWN_STEP:
        return event.step
    if event.kind == "checkpoint.saved" and isinstance(step := event.detail.get("step"), int):
        return step
    committed = bisect_right(ledger, event.time, key=lambda line: line.time)
    newest = ledger[committed - 1].step if committed else 0
    return max(event.step or 0, newest)
