"""Axes, ticks and lines of the report's charts, as inline SVG."""

import math
import sys
from collections.abc import Iterable, Sequence
from html import escape

import msgspec

from elastane.run.observability.quantities import THOUSAND

LARGEST = 1e300
"""Larger values cannot be drawn, because the difference of two of them is infinite."""
SMALLEST = 1e-300

SMALLEST_READABLE, LARGEST_READABLE = 1e-4, 1e6
"""Beyond them a reader counts zeros."""
POWERS_WITH_STEPS = 4
"""Over more powers of ten, steps between them would be more lines than an axis has room for."""
FEWEST_TICKS = 3
"""Fewer say nothing of the scale."""
RARE = 0.02
"""Share of the values of a curve that may be left out at either end."""


class Axis(msgspec.Struct, frozen=True):
    """A linear or logarithmic map of ``[low, high]`` onto pixels from ``start`` to ``stop``.

    Values beyond the ends lie beyond ``start`` and ``stop``.
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, SMALLEST))
        return round(self.start + (at - low) / (high - low or 1.0) * (self.stop - self.start), 2)

    def list_ticks(self, about: int, *, whole: bool = False) -> list[float]:
        """Return about ``about`` round values."""
        return (
            choose_log_ticks(self.low, self.high)
            if self.log
            else choose_ticks(self.low, self.high, about, whole=whole)
        )


def draw_frame(
    title: str, y: Axis, x: Axis, top: float, bottom: float, *, ticks: int = 5, whole: bool = False
) -> Iterable[str]:
    yield f'<text class="title" x="{x.start}" y="{top - 9}">{escape(title)}</text>'
    for value in y.list_ticks(ticks, whole=whole):
        at = y(value)
        yield f'<path class="grid" d="M{x.start} {at}H{x.stop}"/>'
        yield f'<text class="tick" x="{x.start - 9}" y="{at + 4}">{format_number(value)}</text>'
    yield f'<path class="base" d="M{x.start} {bottom}H{x.stop}"/>'


def clip_drawing(x: Axis, top: float, bottom: float, drawing: str) -> str:
    """Return a drawing clipped to its axes."""
    place = f"{x.start} {top} {x.stop - x.start} {bottom - top}"
    left, upper, width, height = place.split()
    return (
        f'<svg x="{left}" y="{upper}" width="{width}" height="{height}" viewBox="{place}" '
        f'class="inside">{drawing}</svg>'
    )


def choose_ticks(low: float, high: float, about: int, *, whole: bool = False) -> list[float]:
    """Return about ``about`` multiples of 1, 2 or 5 times a power of ten within ``[low, high]``."""
    rough = (high - low) / max(about, 1)
    if not rough >= sys.float_info.min:
        # There are no round values between them.
        return [low]
    power = 10 ** math.floor(math.log10(rough))
    unit = min((m * power for m in (1, 2, 5, 10) if m * power >= rough), default=10 * power)
    if whole:
        unit = max(1, round(unit))
    first = math.ceil(low / unit - 1e-9)
    return [first * unit + i * unit for i in range(int((high - first * unit) / unit + 1e-9) + 1)]


def format_number(value: float) -> str:
    """Return a number in readable form: four significant digits, and an exponent only if needed."""
    if value == 0:
        return "0"
    if SMALLEST_READABLE <= abs(value) < LARGEST_READABLE:
        return f"{value:,.4g}" if abs(value) < THOUSAND else f"{value:,.0f}"
    return f"{value:.2e}"


def draw_path(places: Iterable[tuple[float, float | None]]) -> str:
    """Return the path of a polyline; a missing height interrupts it."""
    commands: list[str] = []
    pen = "M"
    for x, y in places:
        if y is None:
            pen = "M"
            continue
        commands.append(f"{pen}{x} {y}")
        pen = "L"
    return "".join(commands)


def choose_log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten within ``[low, high]``; over many powers, the powers only.

    A range that contains too few of them gets the ticks of a linear axis.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= POWERS_WITH_STEPS else (1,)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside if len(inside) >= FEWEST_TICKS else choose_ticks(low, high, 5)


def compute_robust_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of a curve without its beginning and without rare spikes.

    The first steps of a training and single bad batches may lie far above the values that a reader wants to
    see. They are left out only if they would squeeze the rest into less than half of the height.

    Args:
        values: in the order of the steps, all finite, at least one.
    """
    settled = sorted(values[len(values) // 10 :])
    last = len(settled) - 1
    low, high = settled[int(RARE * last)], settled[math.ceil((1 - RARE) * last)]
    least, most = min(values), max(values)
    room = high - low or abs(high) * 0.1 or 1.0
    return least if low - least <= room else low, most if most - high <= room else high


def add_margin(low: float, high: float, *, floor: float | None = None) -> tuple[float, float]:
    """Return the ends of an axis around a range.

    Args:
        floor: a natural end of the axis, such as 0, which it keeps if values are near.
    """
    margin = 0.06 * (high - low) or abs(high) * 0.1 or 0.5
    if floor is not None and floor <= low < floor + 0.35 * (high - floor):
        return floor, high + margin
    return low - margin, high + margin
