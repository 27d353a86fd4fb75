"""The loss over the steps: its main range, its full range, or a logarithmic axis."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

import msgspec

from elastane.run.observability.drawing import (
    SMALLEST,
    Axis,
    add_margin,
    clip_drawing,
    compute_robust_range,
    draw_frame,
    draw_path,
    format_number,
)
from elastane.run.observability.series import Point

LOG_FROM = 1.5
"""A logarithmic axis is offered if the highest loss is this many times the lowest one."""
Scores = Mapping[str, Sequence[tuple[int, float]]]


class View(msgspec.Struct, frozen=True):
    """One view of the losses.

    Args:
        name: of its class in the page.
    """

    name: str
    label: str
    axis: Axis


def list_finite_losses(points: Iterable[Point]) -> list[float]:
    return [point.loss for point in points if point.loss is not None]


def build_views(points: Sequence[Point], scores: Scores, top: float, bottom: float) -> tuple[View, ...]:
    """Return the views of the losses that differ from each other; the page shows the first one first.

    Args:
        points: the steps.
        scores: losses of evaluations, by name.
        top: of the panel, in pixels.
        bottom: likewise.
    """
    losses = list_finite_losses(points) or [0.0]
    shown = [value for some in select_near_scores(scores, losses).values() for _, value in some]
    least, most = min([*losses, *shown]), max([*losses, *shown])
    low, high = compute_robust_range(losses)
    low, high = min([low, *shown]), max([high, *shown])
    floor = 0.0 if least >= 0 else None
    views = [View("focus", "main range", Axis(*add_margin(low, high, floor=floor), bottom, top))]
    if (low, high) != (least, most):
        views.append(View("all", "full range", Axis(*add_margin(least, most, floor=floor), bottom, top)))
    if least > SMALLEST and most > LOG_FROM * least:
        views.append(View("log", "logarithmic", Axis(least / 1.1, most * 1.1, bottom, top, log=True)))
    return tuple(views)


def select_near_scores(scores: Scores, losses: Sequence[float]) -> dict[str, list[tuple[int, float]]]:
    """Return the evaluation losses that can be compared with those of the training.

    A script may sum in other units, such as per batch or per document; such losses get their own chart.
    """
    low, high = compute_robust_range(losses) if losses else (0.0, 0.0)
    room = 2 * (high - low) or abs(high)
    return {
        name: list(points)
        for name, points in scores.items()
        if points and all(low - room <= value <= high + room for _, value in points[len(points) // 4 :])
    }


def draw_loss_panel(points: Sequence[Point], scores: Scores, views: Sequence[View], x: Axis) -> Iterable[str]:
    """Yield the SVG of all views; the page shows one at a time."""
    shown = select_near_scores(scores, list_finite_losses(points))
    top, bottom = views[0].axis.stop, views[0].axis.start
    for view in views:
        y = view.axis
        yield f'<g class="view {view.name}">'
        yield from draw_frame("loss", y, x, top, bottom)
        raw = draw_path((x(p.step), None if p.loss is None else y(p.loss)) for p in points)
        smooth = draw_path((x(p.step), None if p.smooth is None else y(p.smooth)) for p in points)
        yield clip_drawing(x, top, bottom, f'<path class="raw" d="{raw}"/><path class="curve" d="{smooth}"/>')
        yield from draw_score_points(shown, x, y)
        if text := describe_outside(points, y):
            yield f'<text class="note" x="{x.stop}" y="{top - 9}">{escape(text)}</text>'
        yield "</g>"


def draw_score_points(scores: Scores, x: Axis, y: Axis) -> Iterable[str]:
    """Yield a point for each evaluation, with the numbers to show at the pointer."""
    for name, points in scores.items():
        for step, value in points:
            at, height = x(min(max(step, x.low), x.high)), y(value)
            if not min(y.start, y.stop) <= height <= max(y.start, y.stop):
                continue
            text = f"step {step:,}: evaluation, {name} {format_number(value)}"
            title = f"<title>{escape(text)}</title>"
            yield f'<circle class="score" cx="{at}" cy="{height}" r="4.5">{title}</circle>'


def describe_outside(points: Sequence[Point], y: Axis) -> str:
    """Say which losses lie above or below the axis."""
    losses = [(point.loss, point.step) for point in points if point.loss is not None]
    above = max((loss for loss in losses if loss[0] > y.high), default=None)
    below = min((loss for loss in losses if loss[0] < y.low), default=None)
    parts = [
        f"{place} {format_number(loss[0])} at step {loss[1]:,}"
        for place, loss in (("above the axis: up to", above), ("below the axis: down to", below))
        if loss is not None and math.isfinite(loss[0])
    ]
    return "; ".join(parts)
