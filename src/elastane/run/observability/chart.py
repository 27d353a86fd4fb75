"""The run's chart as inline SVG: workers, loss, step time and lanes over one axis of steps."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape

import msgspec

from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.observability.attempts import AttemptCost, compute_attempt_costs, is_beginning
from elastane.run.observability.curves import collect_evaluation_means, select_loss_scores
from elastane.run.observability.drawing import Axis, choose_ticks, draw_frame, draw_path
from elastane.run.observability.facts import compute_median
from elastane.run.observability.loss_panel import View, build_views, draw_loss_panel
from elastane.run.observability.run_events import RUN_EVENTS
from elastane.run.observability.series import (
    Lane,
    Point,
    build_lanes,
    build_points,
    find_sizes,
    find_step,
    thin_points,
)

WIDTH = 1120
LEFT, RIGHT = 66, 18
MARKS_PX, MARK_ROWS, MARK_ROW_PX = 58, 3, 17
GAP_PX = 34
LANE_PX = 15
CHECKPOINTS_PX = 14
MOST_LANES = 40
MOST_MARKS = 600
MOST_SIZES = 3000


class MarkStyle(msgspec.Struct, frozen=True):
    """The look of the marks of one kind of event: a colour class, a glyph around the origin, and a label."""

    colour: str
    glyph: str
    label: str


UP = "M0-6L6 5H-6Z"
DOWN = "M0 6L6-5H-6Z"
CROSS = "M-5-5L5 5M5-5L-5 5"
DIAMOND = "M0-6.5L6.5 0L0 6.5L-6.5 0Z"
RING = "M-4.5 0A4.5 4.5 0 1 0 4.5 0A4.5 4.5 0 1 0-4.5 0"
CHEVRON = "M-5-3L0 3L5-3"
SQUARE = "M-5-5H5V5H-5Z"
STAR = "M0-6.5L1.9-2L6.5-2L2.8 1L4.2 6L0 3.1L-4.2 6L-2.8 1L-6.5-2L-1.9-2Z"
BACK = "M-4.6-2.6A5.3 5.3 0 1 1-5.2 1.2M-5.6-6V-2.2H-1.8"
SWAP = "M-6-2.5H5M2-5.5L5-2.5M6 2.5H-5M-2 5.5L-5 2.5"

GLYPHS = {
    "worker.joined": UP,
    "worker.left": DOWN,
    "worker.died": CROSS,
    "worker.hung": SQUARE,
    "worker.failed": CROSS,
    "worker.refused": RING,
    "node.joined": UP,
    "node.refused": RING,
    "node.closed": RING,
    "node.left": DOWN,
    "node.lost": CROSS,
    "coordinator.died": DIAMOND,
    "resize.requested": RING,
    "drain.requested": CHEVRON,
    "stop.requested": SQUARE,
    "shares.rebalanced": SWAP,
    "evaluation": STAR,
    "ledger.stalled": SQUARE,
    "data.awaited": CHEVRON,
    "claim.waiting": CHEVRON,
    "generation.unheard": CROSS,
    "checkpoint.failing": RING,
    "checkpoint.abandoned": RING,
    "model.failing": RING,
    "run.resumed": BACK,
    "run.failed": CROSS,
    "run.stopped": SQUARE,
}
"""The kinds of events that have a mark above the chart; other events have only a row in the table."""

MARKS = {
    kind: MarkStyle(RUN_EVENTS[kind].tone, glyph, RUN_EVENTS[kind].label) for kind, glyph in GLYPHS.items()
}


class Chart(msgspec.Struct, frozen=True):
    """The run's chart.

    Args:
        hover: the data for the page's script, which reacts to the pointer.
    """

    svg: str
    hover: dict[str, object]
    marked: tuple[MarkStyle, ...]
    views: tuple[View, ...]


def build_chart(ledger: Sequence[LedgerLine], events: Sequence[EventLine], virtual_ranks: int) -> Chart:
    """Draw a run of at least one step."""
    points = build_points(ledger)
    x = Axis(points[0].step, max(points[-1].step, points[0].step + 1), LEFT, WIDTH - RIGHT)
    losses = thin_points(points, height=get_loss_height)
    scores = select_loss_scores(collect_evaluation_means(events, ledger))
    lanes = build_lanes(ledger)
    attempts = compute_attempt_costs(events, ledger)
    shown = lanes if len(lanes) <= MOST_LANES else []

    parts: list[str] = []
    top = MARKS_PX + 34.0
    workers_bottom = top + 84
    parts += draw_workers_panel(find_sizes(ledger), points[-1].step, x, top, workers_bottom)
    loss_top = workers_bottom + GAP_PX
    loss_bottom = loss_top + 270
    views = build_views(losses, scores, loss_top, loss_bottom)
    parts += draw_loss_panel(losses, scores, views, x)
    times_top = loss_bottom + GAP_PX
    times_bottom = times_top + 110
    parts += draw_times_panel(points, x, times_top, times_bottom)
    bottom = times_bottom
    if shown:
        lanes_top = times_bottom + GAP_PX
        bottom = lanes_top + LANE_PX * len(shown)
        parts += draw_lanes_panel(shown, x, lanes_top, virtual_ranks)
    checkpoints = find_checkpoint_steps(events)
    if checkpoints:
        checkpoints_top = bottom + GAP_PX
        bottom = checkpoints_top + CHECKPOINTS_PX
        parts += draw_checkpoints_panel(
            checkpoints, {attempt.checkpoint for attempt in attempts}, x, checkpoints_top
        )
    parts += draw_step_ticks(x, bottom)
    # The first workers do not count as a change; workers that join or leave later do.
    changes = [event for event in events if not is_beginning(event, find_step(event, ledger), events)]
    marks = find_marks(changes, ledger, x)
    height = bottom + 40
    svg = (
        f'<svg id="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="Loss, workers and step time over {len(ledger)} steps">'
        + "".join(draw_repeated_steps(attempts, x, top, bottom))
        + "".join(draw_marks(marks, bottom))
        + "".join(parts)
        + f'<g id="cross" visibility="hidden"><line y1="{MARKS_PX + 6}" y2="{bottom:.1f}"/>'
        + '<circle id="dot" r="4.5"/></g></svg>'
    )
    styles = tuple(dict.fromkeys(mark.style for mark in marks))
    return Chart(svg, build_hover_data(losses, views, x, top, (loss_top, loss_bottom)), styles, views)


def build_hover_data(
    points: Sequence[Point], views: Sequence[View], x: Axis, top: float, losses: tuple[float, float]
) -> dict[str, object]:
    """Return the data with which the page's script reacts to the pointer.

    Args:
        top: of the highest panel, in pixels.
        losses: top and bottom of the panel of the losses, in pixels.
    """
    return {
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "first": x.low,
        "last": x.high,
        "views": {view.name: [view.axis.low, view.axis.high, view.axis.log] for view in views},
        "top": top - 24,
        "yTop": losses[0],
        "yBottom": losses[1],
        "points": [
            [p.step, round_for_chart(p.loss), round_for_chart(p.smooth), p.workers, round(p.step_ms, 1)]
            for p in points
        ],
    }


def get_loss_height(point: Point) -> float:
    # A missing loss counts as the highest, so that thinning keeps its gap.
    return math.inf if point.loss is None else point.loss


def get_step_height(point: Point) -> float:
    return point.step_ms


def round_for_chart(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def draw_workers_panel(
    sizes: Sequence[tuple[int, int]], last: int, x: Axis, top: float, bottom: float
) -> Iterable[str]:
    """Yield the number of workers as a staircase, because it changes at a step, not between two."""
    most = max(size for _, size in sizes)
    y = Axis(0, most * 1.12, bottom, top)
    yield from draw_frame("workers", y, x, top, bottom, whole=True)
    places = [f"M{x(sizes[0][0])} {y(sizes[0][1])}"]
    places += [f"H{x(step)}V{y(size)}" for step, size in thin_sizes(sizes)[1:]]
    line = "".join(places) + f"H{x(max(last, x.high))}"
    yield f'<path class="area" d="{line}V{bottom}H{x(sizes[0][0])}Z"/><path class="edge" d="{line}"/>'


def thin_sizes(sizes: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    every = -(-len(sizes) // MOST_SIZES)
    return sizes if every == 1 else [*sizes[::every], sizes[-1]]


def draw_times_panel(points: Sequence[Point], x: Axis, top: float, bottom: float) -> Iterable[str]:
    """Yield the curve of the time from entering a step to having applied it; pauses appear as peaks."""
    shown = thin_points(points, height=get_step_height)
    usual = compute_median([point.step_ms for point in points])
    y = Axis(0, max(max(point.step_ms for point in shown) * 1.1, 1e-3), bottom, top)
    yield from draw_frame("step time, ms", y, x, top, bottom, ticks=3)
    drawn = draw_path((x(point.step), y(point.step_ms)) for point in shown)
    yield f'<path class="times" d="{drawn}"/>'
    yield f'<path class="usual" d="M{LEFT} {y(usual)}H{WIDTH - RIGHT}"/>'
    yield f'<text class="note" x="{WIDTH - RIGHT}" y="{top - 8}">usual {usual:,.0f} ms</text>'


def draw_lanes_panel(lanes: Sequence[Lane], x: Axis, top: float, virtual_ranks: int) -> Iterable[str]:
    """Yield a lane for each worker; the more virtual ranks it computed, the stronger its colour."""
    yield f'<text class="title" x="{LEFT}" y="{top - 9}">virtual ranks per worker</text>'
    for place, lane in enumerate(lanes):
        y = top + place * LANE_PX
        yield f'<text class="tick" x="{LEFT - 9}" y="{y + 10.5}">{lane.worker}</text>'
        for first, last, ranks in lane.stretches[:MOST_MARKS]:
            start, stop = x(first), min(x(last + 1), WIDTH - RIGHT)
            share = ranks / max(virtual_ranks, 1)
            yield (
                f'<rect class="lane" x="{start}" y="{y}" width="{max(stop - start, 1):.2f}" '
                f'height="{LANE_PX - 3}" fill-opacity="{0.25 + 0.75 * share:.2f}">'
                f"<title>worker {lane.worker}: {ranks} of {virtual_ranks} virtual ranks, "
                f"steps {first} to {last}</title></rect>"
            )


def find_checkpoint_steps(events: Sequence[EventLine]) -> dict[str, int]:
    """Return the step of each checkpoint by its name."""
    saved = (event.detail for event in events if event.kind == "checkpoint.saved")
    return {str(detail.get("name")): step for detail in saved if isinstance(step := detail.get("step"), int)}


def draw_checkpoints_panel(
    checkpoints: Mapping[str, int], used: Collection[str], x: Axis, top: float
) -> Iterable[str]:
    """Yield a dot for each checkpoint, a larger one for those from which the run continued."""
    yield f'<text class="title" x="{LEFT}" y="{top - 9}">checkpoints</text>'
    middle = top + CHECKPOINTS_PX / 2
    yield f'<path class="grid" d="M{x.start} {middle}H{x.stop}"/>'
    for name, step in list(checkpoints.items())[-MOST_MARKS:]:
        at = x(min(max(step, x.low), x.high))
        mark, radius = (" used", 6) if name in used else ("", 4)
        title = f"{name}; the run continued from it" if mark else name
        yield (
            f'<circle class="checkpoint{mark}" cx="{at}" cy="{middle}" r="{radius}">'
            f"<title>{escape(title)}</title></circle>"
        )


def draw_repeated_steps(attempts: Sequence[AttemptCost], x: Axis, top: float, bottom: float) -> Iterable[str]:
    """Yield a mark for the steps that one attempt lost and the next made again."""
    for attempt in attempts:
        if attempt.lost_steps:
            start, stop = x(max(attempt.step, x.low)), x(min(attempt.step + attempt.lost_steps, x.high))
            words = (
                f"steps {attempt.step + 1} to {attempt.step + attempt.lost_steps} were lost and made again"
            )
            yield (
                f'<rect class="again" x="{start}" y="{top}" width="{max(stop - start, 1):.2f}" '
                f'height="{bottom - top:.1f}"><title>{words}</title></rect>'
            )


def draw_step_ticks(x: Axis, bottom: float) -> Iterable[str]:
    ticks = [value for value in choose_ticks(x.low, x.high, 10, whole=True) if x.low <= value <= x.high]
    for value in ticks:
        yield f'<path class="base" d="M{x(value)} {bottom}v5"/>'
        yield f'<text class="step" x="{x(value)}" y="{bottom + 19}">{value:,.0f}</text>'
    yield f'<text class="note" x="{WIDTH - RIGHT}" y="{bottom + 35}">step</text>'


class Mark(msgspec.Struct, frozen=True):
    """An event's place above the chart; ``row`` counts upward if neighbours are near."""

    x: float
    row: int
    style: MarkStyle
    text: str


def find_marks(events: Sequence[EventLine], ledger: Sequence[LedgerLine], x: Axis) -> list[Mark]:
    marks: list[Mark] = []
    free_from = [-math.inf] * MARK_ROWS
    seen = [event for event in events if event.kind in MARKS]
    for event in sorted(seen, key=lambda event: find_step(event, ledger))[:MOST_MARKS]:
        at = x(min(max(find_step(event, ledger), x.low), x.high))
        row = next((row for row in range(MARK_ROWS) if free_from[row] <= at), None)
        if row is None:
            row = min(range(MARK_ROWS), key=free_from.__getitem__)
        free_from[row] = at + MARK_ROW_PX
        marks.append(Mark(at, row, MARKS[event.kind], describe_mark(event, ledger)))
    return marks


def describe_mark(event: EventLine, ledger: Sequence[LedgerLine]) -> str:
    label = MARKS[event.kind].label
    source = "" if label.startswith(event.who) else event.who
    words = [f"step {find_step(event, ledger)}:", source, label]
    return " ".join(word for word in words if word) + (f" ({event.why})" if event.why else "")


def draw_marks(marks: Sequence[Mark], bottom: float) -> Iterable[str]:
    for mark in marks:
        y = MARKS_PX - 6 - mark.row * MARK_ROW_PX
        yield f'<path class="rule {mark.style.colour}" d="M{mark.x} {y + 8}V{bottom:.1f}"/>'
    for mark in marks:
        y = MARKS_PX - 6 - mark.row * MARK_ROW_PX
        yield (
            f'<g class="mark {mark.style.colour}" transform="translate({mark.x} {y})" '
            f'data-text="{escape(mark.text)}"><circle r="10"/><path d="{mark.style.glyph}"/></g>'
        )


def draw_glyph(style: MarkStyle | None) -> str:
    if style is None:
        return '<svg class="glyph" viewBox="-9 -9 18 18"></svg>'
    return f'<svg class="glyph {style.colour}" viewBox="-9 -9 18 18"><path d="{style.glyph}"/></svg>'


def draw_legend(styles: Iterable[MarkStyle]) -> str:
    """Return the entries of the legend, one for each label."""
    unique = {style.label: style for style in styles}.values()
    return "".join(f"<span>{draw_glyph(style)}{style.label}</span>" for style in unique)
