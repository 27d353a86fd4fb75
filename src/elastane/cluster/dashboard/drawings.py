"""The small charts of the dashboard. Those of a run are drawn by `elastane.run.observability`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

from markupsafe import Markup

from elastane.run.observability.drawing import Axis, draw_frame

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 520, 132, 40, 8, 24, 112
SIZES_WIDTH, SIZES_HEIGHT = 84, 20
DAY_H = 24


def draw_pool_use(
    name: str, stretches: Sequence[tuple[float, float, float]], devices: int, now_s: float
) -> Markup:
    """Return the use of a pool over the last day.

    Args:
        stretches: ``(begin, devices, borrowed devices)`` of each, the oldest first.
        devices: that the pool has now.
        now_s: the end of the chart.
    """
    most = max([devices, *(used for _, used, _ in stretches), 1])
    x = Axis(now_s - DAY_H * 3600, now_s, LEFT, WIDTH - RIGHT)
    y = Axis(0, most * 1.08, BOTTOM, TOP)
    frame = Markup("").join(map(Markup, draw_frame("devices in use", y, x, TOP, BOTTOM, ticks=3, whole=True)))
    used = _draw_steps(x, y, [(begin, value) for begin, value, _ in stretches], now_s)
    borrowed = _draw_steps(x, y, [(begin, value) for begin, _, value in stretches], now_s)
    hours = Markup("").join(
        Markup('<text class="step" x="{}" y="{}">{}</text>').format(
            x(now_s - hours * 3600), BOTTOM + 16, f"{hours} h ago" if hours else "now"
        )
        for hours in (18, 12, 6)
    )
    return Markup(
        '<svg class="pool-use" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">{frame}'
        '<path class="area" d="{used}V{zero}H{left}Z"/><path class="edge" d="{used}"/>'
        '<path class="borrowed" d="{borrowed}V{zero}H{left}Z"/>'
        '<path class="limit" d="M{left} {top}H{right}"/>{hours}</svg>'
    ).format(
        w=WIDTH,
        h=HEIGHT,
        label=f"Devices of pool {name} in use over the last 24 hours, of {devices}",
        frame=frame,
        used=used,
        borrowed=borrowed,
        zero=BOTTOM,
        left=max(x(stretches[0][0]), LEFT) if stretches else LEFT,
        right=WIDTH - RIGHT,
        top=y(devices),
        hours=hours,
    )


def draw_sizes(sizes: Sequence[tuple[float, int]], most: int, now_s: float) -> Markup:
    """Return the number of workers of a job over the time since its first change that was seen."""
    if not any(workers for _, workers in sizes):
        return Markup("")
    begin_s = min(sizes[0][0], now_s - 1)
    x, y = Axis(begin_s, now_s, 1, SIZES_WIDTH - 1), Axis(0, max(most, 1), SIZES_HEIGHT - 2, 2)
    path = _draw_steps(x, y, [(since, float(workers)) for since, workers in sizes], now_s)
    return Markup(
        '<svg class="sizes" viewBox="0 0 {w} {h}" aria-hidden="true">'
        '<path class="area" d="{path}V{zero}H1Z"/><path class="edge" d="{path}"/></svg>'
    ).format(w=SIZES_WIDTH, h=SIZES_HEIGHT, path=path, zero=SIZES_HEIGHT - 2)


def _draw_steps(x: Axis, y: Axis, values: Sequence[tuple[float, float]], end_s: float) -> str:
    if not values:
        return f"M{x.start} {y(0)}"
    begin_s, first = values[0]
    path = [f"M{max(x(begin_s), x.start)} {y(first)}"]
    path += [f"H{x(at)}V{y(value)}" for (_, before), (at, value) in pairwise(values) if value != before]
    return "".join(path) + f"H{x(end_s)}"


def draw_days(title: str, days: Sequence[tuple[float, float]]) -> Markup:
    """Return a bar for each day: ``(begin, value)``, the oldest first."""
    most = max([value for _, value in days], default=0.0) or 1.0
    x = Axis(0, max(1, len(days)), LEFT + 6, WIDTH - 2 * RIGHT)
    y = Axis(0, most * 1.08, BOTTOM, TOP)
    bars = [
        Markup(
            '<rect class="day" x="{}" y="{}" width="{:.2f}" height="{:.2f}"><title>{}</title></rect>'
        ).format(
            x(place) + 1,
            y(value),
            max(1.0, x(1) - x(0) - 2),
            max(0.0, BOTTOM - y(value)),
            f"{datetime.fromtimestamp(begin_s, UTC):%Y-%m-%d}: {value:,.2f}",
        )
        for place, (begin_s, value) in enumerate(days)
    ]
    labels = [
        Markup('<text class="step" x="{}" y="{}">{}</text>').format(
            x(place + 0.5), BOTTOM + 16, f"{datetime.fromtimestamp(days[place][0], UTC):%b %-d}"
        )
        for place in range(len(days) - 1, -1, -7)
    ]
    frame = map(Markup, draw_frame(title, y, x, TOP, BOTTOM, ticks=3))
    return Markup('<svg class="pool-use" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH,
        HEIGHT,
        f"{title} of each of the last {len(days)} days",
        Markup("").join((*frame, *bars, *labels)),
    )


def draw_reserved(
    pool: str, times: Sequence[tuple[float, float, int]], begin_s: float, end_s: float
) -> Markup:
    """Return the devices of a pool that reservations hold over time: ``(begin, end, devices)`` of each."""
    moments = sorted({begin_s, *(time_s for begin, end, _ in times for time_s in (begin, end))})
    values = [
        (max(moment, begin_s), float(sum(devices for begin, end, devices in times if begin <= moment < end)))
        for moment in moments
        if moment < end_s
    ]
    most = max([value for _, value in values], default=0.0) or 1.0
    x, y = Axis(begin_s, end_s, LEFT, WIDTH - RIGHT), Axis(0, most * 1.08, BOTTOM, TOP)
    path = _draw_steps(x, y, values, end_s)
    frame = map(Markup, draw_frame("reserved devices", y, x, TOP, BOTTOM, ticks=3, whole=True))
    days = [
        Markup('<text class="step" x="{}" y="{}">{}</text>').format(
            x(begin_s + day * 86400.0), BOTTOM + 16, f"in {day} days" if day > 1 else "tomorrow"
        )
        for day in (1, 3, 5)
    ]
    return Markup(
        '<svg class="pool-use" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">{frame}'
        '<path class="area" d="{path}V{zero}H{left}Z"/><path class="edge" d="{path}"/></svg>'
    ).format(
        w=WIDTH,
        h=HEIGHT,
        label=f"Reserved devices of pool {pool} over the next week",
        frame=Markup("").join((*frame, *days)),
        path=path,
        zero=BOTTOM,
        left=LEFT,
    )
