"""The progress of a live run, collected from its ledger and events."""

import math

import msgspec

from elastane.run.nouns.records import EventLine, LedgerLine

REMEMBERED_STEPS = 30
REMEMBERED_EVENTS = 6
CURVE_POINTS = 96

QUIET = frozenset({"worker.started", "worker.ready"})
"""Kinds of events that are shown only before the first step."""


MESSAGE = "message"
"""Kind of the event for a line that the script prints with ``run.print``."""


class Curve(msgspec.Struct, frozen=True):
    """A curve in at most ``CURVE_POINTS`` values: every ``stride``-th; if full, every second is dropped."""

    values: tuple[float, ...] = ()
    stride: int = 1
    seen: int = 0

    def with_next(self, value: float) -> "Curve":
        values, stride = self.values, self.stride
        if self.seen % stride == 0:
            values = (*values, value)
        if len(values) > CURVE_POINTS:
            values, stride = values[::2], stride * 2
        return Curve(values, stride, self.seen + 1)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a run.

    Args:
        steps: planned steps; None until the script has started.
        virtual_ranks: V; None until the script has started.
        line: the newest line of the ledger.
        curve: losses from the first step on.
        recent: ``(samples, seconds)`` of the last steps, for the throughput.
        samples: number of samples trained on so far.
        events: the last few events.
    """

    steps: int | None = None
    virtual_ranks: int | None = None
    line: LedgerLine | None = None
    curve: Curve = Curve()
    recent: tuple[tuple[int, float], ...] = ()
    samples: int = 0
    events: tuple[EventLine, ...] = ()

    @property
    def step(self) -> int:
        return self.line.step if self.line else 0

    @property
    def samples_per_s(self) -> float:
        """Samples per second over the last steps; 0 before the first."""
        seconds = sum(s for _, s in self.recent)
        return sum(count for count, _ in self.recent) / seconds if seconds > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds to the last step at the pace of the last ones; None while unknown."""
        if self.steps is None or not self.recent:
            return None
        return (self.steps - self.step) * sum(s for _, s in self.recent) / len(self.recent)


def add_line(progress: Progress, line: LedgerLine) -> Progress:
    curve = progress.curve
    if line.loss is not None and math.isfinite(line.loss):
        curve = curve.with_next(line.loss)
    recent = (*progress.recent, (line.samples.count, line.seconds.get("step", 0.0)))
    return msgspec.structs.replace(
        progress,
        line=line,
        curve=curve,
        recent=recent[-REMEMBERED_STEPS:],
        samples=progress.samples + line.samples.count,
    )


def add_event(progress: Progress, event: EventLine) -> Progress:
    if event.kind in QUIET and progress.line is not None:
        return progress
    return msgspec.structs.replace(progress, events=(*progress.events, event)[-REMEMBERED_EVENTS:])
