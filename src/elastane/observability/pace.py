"""The speed of a job with each number of workers, from the lines it records. Pure.

The job writes the lines itself. Their numbers are within the bounds of `elastane.api.bounds`, so all values
derived from them here are finite.
"""

import math
from collections.abc import Mapping

import msgspec

from elastane.api.observations import RECENT_STEPS
from elastane.api.records import EventLine, LedgerLine

WINDOW_S = 10.0
"""Length of a window in which steps are measured together; a longer step is a window of its own."""

MOST_WINDOWS = 30
"""Five minutes of short steps. A lasting change of the speed shows after two minutes if the speed has grown,
after three and a quarter if it has fallen."""

QUANTILE = 5 / 8
"""The speed is the one that this part of the windows does not exceed. Noise makes steps longer, hardly ever
shorter, so a mean would show how busy the neighbours were. A noisy minute touches seven windows: it has no
effect as soon as five are sound."""

MEASURED_S = 120.0
"""Seconds of measurement before a speed is compared with those of other sizes: twelve windows, in which one
noisy minute decides nothing."""

STALE_S = 1800.0
"""Seconds for which the speed at another size counts: later the machines have other neighbours."""

REMEMBERED_PAUSES = 8

SHORTEST_STEP_S = 1e-6
"""A line with a shorter step is no measurement. This also bounds every speed, see `Speed`."""

MOST_SIZES = 64
"""Number of sizes with speeds that are kept, those measured last."""


class Speed(msgspec.Struct, frozen=True):
    """The latest steps with one number of workers, in windows.

    Args:
        samples: samples trained on in the window that is not full yet.
        seconds: the time that took.
        time: when the last of these steps ended, in seconds since 1970.
        windows: samples per second of the full windows, oldest first.
        measured_s: seconds of all steps together, up to `MEASURED_S`.
    """

    samples: float = 0.0
    seconds: float = 0.0
    time: float = 0.0
    windows: tuple[float, ...] = ()
    measured_s: float = 0.0

    @property
    def samples_per_s(self) -> float:
        """The usual speed, without what was noise; see `QUANTILE`."""
        if not self.windows:
            return self.samples / self.seconds
        return sorted(self.windows)[int(len(self.windows) * QUANTILE)]

    @property
    def is_brief(self) -> bool:
        """Whether it was measured for too short a time to be compared with others."""
        return self.measured_s < MEASURED_S

    def after(self, samples: float, seconds: float, time: float) -> "Speed":
        """With one more step."""
        samples, in_window_s = self.samples + samples, self.seconds + seconds
        measured_s = min(MEASURED_S, self.measured_s + seconds)
        if in_window_s < WINDOW_S:
            return Speed(samples, in_window_s, time, self.windows, measured_s)
        windows = (*self.windows, samples / in_window_s)[-MOST_WINDOWS:]
        return Speed(0.0, 0.0, time, windows, measured_s)


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


def add_line_to_pace(pace: Pace, line: LedgerLine) -> Pace:
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
    speed = pace.speeds.get(workers, Speed()).after(line.samples.count, seconds, line.time)
    fresh = {other: one for other, one in pace.speeds.items() if line.time < one.time + STALE_S}
    newest = sorted({**fresh, workers: speed}.items(), key=lambda one: one[1].time)[-MOST_SIZES:]
    return dict(newest)


def _losses(pace: Pace, line: LedgerLine) -> tuple[float, ...]:
    if line.loss is None or not math.isfinite(line.loss):
        return ()
    # After a resume some steps are made again: what they were before does not count twice.
    known = pace.losses if line.step == pace.step + 1 else ()
    return (*known, line.loss)[-RECENT_STEPS:]


def add_event_to_pace(pace: Pace, event: EventLine) -> Pace:
    if event.kind == "checkpoint.saved":
        return msgspec.structs.replace(pace, saved_s=event.time)
    if event.kind == "generation.started" and event.pause_ms:
        pause_s = max(0.0, *event.pause_ms.values()) / 1000
        return msgspec.structs.replace(pace, pauses_s=(*pace.pauses_s, pause_s)[-REMEMBERED_PAUSES:])
    return pace
