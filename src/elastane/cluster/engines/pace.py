"""The speed of a job with each number of workers, computed from its recorded lines. Pure.

The job writes the lines itself. Their numbers are within the bounds of `elastane.common.bounds`, so all
values derived from them here are finite.
"""

import math
from collections.abc import Mapping

import msgspec

from elastane.cluster.nouns.engine import RECENT_STEPS
from elastane.run.nouns.records import EventLine, LedgerLine

WINDOW_S = 10.0
"""Seconds of a window in which steps are measured together; a longer step is a window of its own."""

MOST_WINDOWS = 30
"""Five minutes of short steps. A lasting change of the speed shows after two minutes if the speed has grown,
after three and a quarter if it has fallen."""

QUANTILE = 5 / 8
"""The speed is the value that this fraction of the windows does not exceed. Noise makes steps longer, hardly
ever shorter, so a mean would measure the load of neighbouring processes. A noisy minute affects seven
windows; it has no effect once five others are sound."""

MEASURED_S = 120.0
"""Seconds of measurement before a speed is compared with those of other sizes: twelve windows, so that one
noisy minute decides nothing."""

HALF_WEIGHT_S = 12 * 3600.0
"""Seconds without a step at a size after which its speed has half its weight: the load of the machines may
have changed."""

WEIGHT_GRAIN = 1 / 16
"""Weights come in steps of this size, so that a speed that nobody measures again changes few plans."""

REMEMBERED_PAUSES = 8

SHORTEST_STEP_S = 1e-6
"""A line with a shorter step does not count. This also bounds every speed, see `Speed`."""

MOST_SIZES = 32
"""The most sizes for which speeds are kept; those measured last stay."""


class Speed(msgspec.Struct, frozen=True):
    """The speed of the latest steps with one number of workers, in windows.

    Args:
        samples: samples in the window that is not full yet.
        seconds: seconds in that window.
        time: end of the last step, in seconds since 1970.
        windows: samples per second of the full windows, oldest first.
        measured_s: seconds of all steps together, at most `MEASURED_S`.
    """

    samples: float = 0.0
    seconds: float = 0.0
    time: float = 0.0
    windows: tuple[float, ...] = ()
    measured_s: float = 0.0

    @property
    def samples_per_s(self) -> float:
        """The usual speed, without noise; see `QUANTILE`."""
        if not self.windows:
            return self.samples / self.seconds
        return sorted(self.windows)[int(len(self.windows) * QUANTILE)]

    @property
    def is_brief(self) -> bool:
        """Whether the time of measurement is too short for a comparison with other speeds."""
        return self.measured_s < MEASURED_S

    def compute_weight(self, now_s: float) -> float:
        """Return how much the speed counts beside those of other sizes, from 0 to 1; 0: it is brief."""
        if self.is_brief:
            return 0.0
        weight = HALF_WEIGHT_S / (HALF_WEIGHT_S + max(0.0, now_s - self.time))
        return max(WEIGHT_GRAIN, round(weight / WEIGHT_GRAIN) * WEIGHT_GRAIN)

    def add_step(self, samples: float, seconds: float, time: float) -> "Speed":
        """Return the speed with one more step."""
        samples, in_window_s = self.samples + samples, self.seconds + seconds
        measured_s = min(MEASURED_S, self.measured_s + seconds)
        if in_window_s < WINDOW_S:
            return Speed(samples, in_window_s, time, self.windows, measured_s)
        windows = (*self.windows, samples / in_window_s)[-MOST_WINDOWS:]
        return Speed(0.0, 0.0, time, windows, measured_s)


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a job in the lines read so far.

    Args:
        losses: of the last `RECENT_STEPS` steps; they start anew after a step without a loss, and at a step
            that is not the next one.
        samples: samples of the largest step seen, which is the global batch.
        pauses_s: the longest wait of a healthy worker for each of the latest changes, oldest first.
    """

    step: int = 0
    loss: float | None = None
    losses: tuple[float, ...] = ()
    samples: int = 0
    speeds: Mapping[int, Speed] = {}
    pauses_s: tuple[float, ...] = ()
    saved_s: float | None = None

    @property
    def ordered_speeds(self) -> tuple[tuple[int, float], ...]:
        """``(workers, samples per second)``, by number of workers."""
        return tuple((workers, speed.samples_per_s) for workers, speed in sorted(self.speeds.items()))

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of ``ordered_speeds``, as of the last step."""
        now_s = max((speed.time for speed in self.speeds.values()), default=0.0)
        return tuple(speed.compute_weight(now_s) for _, speed in sorted(self.speeds.items()))

    @property
    def recent_loss(self) -> float | None:
        """The mean of ``losses``; None while there are too few."""
        if len(self.losses) < RECENT_STEPS:
            return None
        # Divide first, because the sum of twenty huge losses would overflow.
        return math.fsum(loss / RECENT_STEPS for loss in self.losses)

    @property
    def resize_s(self) -> float | None:
        """The mean of the latest pauses; None before the first."""
        return sum(self.pauses_s) / len(self.pauses_s) if self.pauses_s else None


def add_line_to_pace(pace: Pace, line: LedgerLine) -> Pace:
    return msgspec.structs.replace(
        pace,
        step=line.step,
        loss=line.loss,
        losses=_add_loss(pace, line),
        samples=max(pace.samples, line.samples.count),
        speeds=_add_speed(pace, line),
    )


def _add_speed(pace: Pace, line: LedgerLine) -> Mapping[int, Speed]:
    workers, seconds = len(line.workers), line.seconds.get("step", 0.0)
    if not (math.isfinite(seconds) and seconds >= SHORTEST_STEP_S and workers):
        return pace.speeds
    speed = pace.speeds.get(workers, Speed()).add_step(line.samples.count, seconds, line.time)
    speeds = {**pace.speeds, workers: speed}
    return dict(sorted(speeds.items(), key=lambda entry: entry[1].time)[-MOST_SIZES:])


def _add_loss(pace: Pace, line: LedgerLine) -> tuple[float, ...]:
    if line.loss is None or not math.isfinite(line.loss):
        return ()
    # After a resume some steps are made again; their earlier losses must not count twice.
    known = pace.losses if line.step == pace.step + 1 else ()
    return (*known, line.loss)[-RECENT_STEPS:]


def add_event_to_pace(pace: Pace, event: EventLine) -> Pace:
    if event.kind == "checkpoint.saved":
        return msgspec.structs.replace(pace, saved_s=event.time)
    stopped_s = event.detail.get("stopped_s") if event.kind == "generation.started" else None
    if event.kind == "generation.started" and (event.pause_ms or isinstance(stopped_s, int | float)):
        # Of an unmodified script only the time is known in which none of its processes ran.
        known_s = stopped_s if isinstance(stopped_s, int | float) and math.isfinite(stopped_s) else 0.0
        pause_s = max(0.0, known_s, *(ms / 1000 for ms in event.pause_ms.values()))
        return msgspec.structs.replace(pace, pauses_s=(*pace.pauses_s, pause_s)[-REMEMBERED_PAUSES:])
    return pace
