"""What a job can do with each number of workers, folded from the lines it writes down. Pure.

The lines are a job's own words. Their numbers are within the bounds of `elastane.api.bounds`; whatever is
derived from them here is finite.
"""

import math
from collections.abc import Mapping

import msgspec

from elastane.api.observations import RECENT_STEPS
from elastane.api.records import EventLine, LedgerLine

FORGETTING = 0.95
"""Weight of what was known against a new step: about the last twenty count, or, of short ones, `MEMORY_S`."""

MEMORY_S = 10.0
"""One step that was held up must not make a job of fast steps look slow."""

STALE_S = 1800.0
"""So long a speed with another number of workers counts: later the machines have other neighbours."""

REMEMBERED_PAUSES = 8

SHORTEST_STEP_S = 1e-6
"""No step is shorter: a line that says so is no measurement. It also bounds every speed, see `Speed`."""

MOST_SIZES = 64
"""Speeds are kept for so many numbers of workers, those measured last."""


class Speed(msgspec.Struct, frozen=True):
    """Samples and seconds of the latest steps with one number of workers, older ones counting less.

    Args:
        samples: trained on.
        seconds: that took.
        time: of the last of these steps, in seconds since 1970.
    """

    samples: float = 0.0
    seconds: float = 0.0
    time: float = 0.0

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen so far.

    Args:
        step: last committed.
        loss: of that step.
        losses: of the last `RECENT_STEPS` steps; fewer after a step that has none, or that is not the next.
        samples: of the largest step seen: the global batch.
        speeds: by number of workers.
        pauses_s: of the latest changes, the longest wait of a healthy worker, oldest first.
        saved_s: when a checkpoint last came to exist, in seconds since 1970.
    """

    step: int = 0
    loss: float | None = None
    losses: tuple[float, ...] = ()
    samples: int = 0
    speeds: Mapping[int, Speed] = {}
    pauses_s: tuple[float, ...] = ()
    saved_s: float | None = None

    @property
    def recent_loss(self) -> float | None:
        """Mean of ``losses``; None while they are too few."""
        if len(self.losses) < RECENT_STEPS:
            return None
        # Divided first: the sum of twenty huge losses would be no number.
        return math.fsum(loss / RECENT_STEPS for loss in self.losses)

    @property
    def resize_s(self) -> float | None:
        """Mean of the latest pauses; None before the first."""
        return sum(self.pauses_s) / len(self.pauses_s) if self.pauses_s else None


def after_line(pace: Pace, line: LedgerLine) -> Pace:
    return msgspec.structs.replace(
        pace,
        step=line.step,
        loss=line.loss,
        losses=_losses(pace, line),
        samples=max(pace.samples, line.samples.count),
        speeds=_speeds(pace, line),
    )


def _speeds(pace: Pace, line: LedgerLine) -> Mapping[int, Speed]:
    workers, seconds = len(line.workers), line.seconds.get("step", 0.0)
    if not (math.isfinite(seconds) and seconds >= SHORTEST_STEP_S and workers):
        return pace.speeds
    known = pace.speeds.get(workers, Speed())
    kept = max(FORGETTING, math.exp(-seconds / MEMORY_S))
    speed = Speed(known.samples * kept + line.samples.count, known.seconds * kept + seconds, line.time)
    fresh = {other: one for other, one in pace.speeds.items() if line.time < one.time + STALE_S}
    newest = sorted({**fresh, workers: speed}.items(), key=lambda one: one[1].time)[-MOST_SIZES:]
    return dict(newest)


def _losses(pace: Pace, line: LedgerLine) -> tuple[float, ...]:
    if line.loss is None or not math.isfinite(line.loss):
        return ()
    # After a resume some steps are made again: what they were before does not count twice.
    known = pace.losses if line.step == pace.step + 1 else ()
    return (*known, line.loss)[-RECENT_STEPS:]


def after_event(pace: Pace, event: EventLine) -> Pace:
    if event.kind == "checkpoint.saved":
        return msgspec.structs.replace(pace, saved_s=event.time)
    if event.kind == "generation.started" and event.pause_ms:
        pause_s = max(0.0, *event.pause_ms.values()) / 1000
        return msgspec.structs.replace(pace, pauses_s=(*pace.pauses_s, pause_s)[-REMEMBERED_PAUSES:])
    return pace
