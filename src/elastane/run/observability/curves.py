"""Small charts of all numbers that a run records per step, one chart for each name.

A `Series`, named values at steps, becomes one chart.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

import msgspec

from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.observability.drawing import (
    LARGEST,
    Axis,
    add_margin,
    choose_ticks,
    clip_drawing,
    compute_robust_range,
    draw_path,
    format_number,
)
from elastane.run.observability.evaluations import read_evaluation_means
from elastane.run.observability.facts import read_step_ms
from elastane.run.observability.series import find_step, smooth_losses, thin_points

LOSSES = ("loss", "eval_loss")
"""The names with which a Trainer logs the losses of training and evaluation."""
MOST_CURVES = 60
MOST_POINTS = 300
MOST_LINES = 6
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 372, 176, 54, 18, 34, 150

Points = tuple[tuple[int, float], ...]


class Series(msgspec.Struct, frozen=True):
    """A named number over the steps.

    Args:
        name: of the chart.
        lines: ``(step, value)`` in the order of the steps, finite; several lines if each group of an
            optimizer has one.
        labels: labels of the lines; empty for a single line.
        points: draw dots, because the values are few and stand for themselves.
        smooth: draw a smoothed curve over the values, because they are noisy.
        floor: a natural end of the axis, such as 0.
    """

    name: str
    lines: tuple[Points, ...]
    labels: tuple[str, ...] = ()
    points: bool = False
    smooth: bool = False
    floor: float | None = None


def build_series(ledger: Sequence[LedgerLine], events: Sequence[EventLine]) -> list[Series]:
    """Return all series in a run's ledger and evaluations, except the loss of its steps."""
    rates, norms = collect_learning_rates(ledger), collect_norms(ledger)
    losses = keep_finite((line.step, line.loss) for line in ledger)
    found = [
        Series(
            "learning rate",
            rates,
            tuple(f"group {group}" for group in range(len(rates))) if len(rates) > 1 else (),
            floor=0.0,
        ),
        Series("gradient norm", (norms,), smooth=True, floor=0.0),
        Series("samples per second", (compute_speeds(ledger),), smooth=True, floor=0.0),
        *(
            Series(f"evaluation: {name}", (tuple(points),), points=True)
            for name, points in collect_evaluation_means(events, ledger).items()
        ),
        *build_logged_series(
            ledger, {"lr": rates, "learning_rate": rates, "grad_norm": (norms,), "loss": (losses,)}
        ),
    ]
    return [series for series in found if any(series.lines)]


def build_logged_series(
    ledger: Sequence[LedgerLine], drawn: Mapping[str, Sequence[Points]]
) -> Iterable[Series]:
    """Yield the series of logged values that no other chart shows.

    A Trainer logs the learning rate and the norm of the gradient, which the ledger has, and its loss and that
    of its evaluations, which share a chart.

    Args:
        drawn: the lines of other charts, by what the names of the same values begin with.
    """
    logged = collect_logged_values(ledger)
    pair = tuple(logged[name] for name in LOSSES if logged.get(name))
    if len(pair) == len(LOSSES):
        yield Series(" and ".join(LOSSES), pair, LOSSES, points=is_sparse(pair[0], ledger))
    for name, points in logged.items():
        is_paired = len(pair) == len(LOSSES) and name in LOSSES
        others = (line for start, lines in drawn.items() if name.startswith(start) for line in lines)
        if not is_paired and not any(repeats(points, line) for line in others):
            yield Series(name, (points,), points=is_sparse(points, ledger))


def repeats(points: Points, line: Points) -> bool:
    """Return whether a line has all these points, up to rounding to fp32."""
    values = dict(line)
    return bool(points) and all(
        step in values and math.isclose(value, values[step], rel_tol=1e-6) for step, value in points
    )


def collect_learning_rates(ledger: Sequence[LedgerLine]) -> tuple[Points, ...]:
    """Return a line for each group of the optimizer, or a single one if the groups never differ."""
    groups = min(max((len(line.learning_rates) for line in ledger), default=0), MOST_LINES)
    lines = []
    for group in range(groups):
        known = (line for line in ledger if line.learning_rates)
        lines.append(
            keep_finite(
                (line.step, line.learning_rates[group if group < len(line.learning_rates) else 0])
                for line in known
            )
        )
    return tuple(lines)


def collect_norms(ledger: Sequence[LedgerLine]) -> Points:
    return keep_finite((line.step, line.grad_norm) for line in ledger)


def compute_speeds(ledger: Sequence[LedgerLine]) -> Points:
    return keep_finite(
        (line.step, 1000 * line.samples.count / read_step_ms(line))
        for line in ledger
        if read_step_ms(line) > 0
    )


def collect_logged_values(ledger: Sequence[LedgerLine]) -> dict[str, Points]:
    """Return the values that the script has logged, by name."""
    found: dict[str, list[tuple[int, float | None]]] = {}
    for line in ledger:
        for name, value in line.logged.items():
            found.setdefault(name, []).append((line.step, value))
    return {name: keep_finite(points) for name, points in found.items()}


def is_sparse(points: Points, ledger: Sequence[LedgerLine]) -> bool:
    return len(points) < len(ledger) / 4


def collect_evaluation_means(
    events: Sequence[EventLine], ledger: Sequence[LedgerLine]
) -> dict[str, list[tuple[int, float]]]:
    """Return the means of the evaluations at their steps, by name."""
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events:
        if event.kind == "evaluation":
            step = find_step(event, ledger)
            for name, mean in read_evaluation_means(event).items():
                if mean is not None and abs(mean) <= LARGEST:
                    found.setdefault(name, []).append((step, mean))
    return found


def keep_finite(points: Iterable[tuple[int, float | None]]) -> Points:
    return tuple((step, value) for step, value in points if value is not None and abs(value) <= LARGEST)


def write_curve_cards(series: Sequence[Series], first: int, last: int) -> Iterable[str]:
    """Yield the HTML of the charts, all with the same axis of steps."""
    if not series:
        return
    yield '<h2>Curves</h2><div class="curves">'
    for curve in series[:MOST_CURVES]:
        yield f'<figure class="card small">{draw_curve(curve, first, last)}</figure>'
    yield "</div>"
    if len(series) > MOST_CURVES:
        yield f'<p class="soft">{len(series) - MOST_CURVES:,} more are in ledger.jsonl.</p>'


def draw_curve(series: Series, first: int, last: int) -> str:
    """Return one chart; the page's script reads its numbers from ``data-lines``."""
    lines = [thin_points(line, height=get_point_value, most=MOST_POINTS) for line in series.lines if line]
    values = [value for line in series.lines for _, value in line]
    low, high = (
        (min(values), max(values)) if series.points or not series.smooth else compute_robust_range(values)
    )
    x = Axis(first, max(last, first + 1), LEFT, WIDTH - RIGHT)
    y = Axis(*add_margin(low, high, floor=series.floor), BOTTOM, TOP)
    parts = [*draw_small_frame(x, y), f'<text class="title" x="12" y="20">{escape(series.name)}</text>']
    newest = ", ".join(format_number(line[-1][1]) for line in lines[:3]) + (", …" if len(lines) > 3 else "")  # noqa: PLR2004 - what fits
    parts.append(f'<text class="note" x="{WIDTH - RIGHT}" y="20">{escape(newest)}</text>')
    drawing: list[str] = []
    for place, (line, whole) in enumerate(zip(lines, filter(None, series.lines), strict=True)):
        drawn = draw_path((x(step), y(value)) for step, value in line)
        if series.smooth:
            drawing.append(f'<path class="raw" d="{drawn}"/>')
            drawn = draw_path((x(step), y(value)) for step, value in smooth_line(whole))
        drawing.append(f'<path class="curve g{place}" d="{drawn}"/>')
        if series.points or len(line) == 1:
            drawing += [f'<circle class="dot" cx="{x(step)}" cy="{y(value)}" r="3"/>' for step, value in line]
    wider = msgspec.structs.replace(x, start=x.start - 5, stop=x.stop + 5)
    parts.append(clip_drawing(wider, TOP - 5, BOTTOM + 5, "".join(drawing)))
    data = msgspec.json.encode(
        [[(step, round_significant(value)) for step, value in line] for line in lines]
    ).decode()
    labels = msgspec.json.encode(list(series.labels)).decode()
    return (
        f'<svg class="small" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(series.name)}" '
        f'data-first="{x.low}" data-last="{x.high}" data-left="{x.start}" data-right="{x.stop}" '
        f'data-lines="{escape(data)}" data-labels="{escape(labels)}">{"".join(parts)}</svg>'
    )


def draw_small_frame(x: Axis, y: Axis) -> Iterable[str]:
    for value in y.list_ticks(4):
        at = y(value)
        yield f'<path class="grid" d="M{x.start} {at}H{x.stop}"/>'
        yield f'<text class="tick" x="{LEFT - 7}" y="{at + 4}">{format_number(value)}</text>'
    yield f'<path class="base" d="M{x.start} {BOTTOM}H{x.stop}"/>'
    for value in choose_ticks(x.low, x.high, 4, whole=True):
        yield f'<text class="step" x="{x(value)}" y="{BOTTOM + 17}">{value:,.0f}</text>'


def smooth_line(line: Points) -> list[tuple[int, float]]:
    curve = smooth_losses([value for _, value in line])
    points = [(step, value) for (step, _), value in zip(line, curve, strict=True) if value is not None]
    return thin_points(points, height=get_point_value, most=MOST_POINTS)


def get_point_value(point: tuple[int, float]) -> float:
    return point[1]


def round_significant(value: float) -> float:
    return float(f"{value:.5g}")


def select_loss_scores(means: Mapping[str, list[tuple[int, float]]]) -> dict[str, list[tuple[int, float]]]:
    """Return the means that are losses."""
    return {name: points for name, points in means.items() if "loss" in name.lower()}
