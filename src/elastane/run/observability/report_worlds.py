"""The parts of ``report.html`` that show an unmodified script: numbers, and the workers over time."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import pairwise

import msgspec

from elastane.common.durations import format_duration
from elastane.run.nouns.records import OUTCOMES, EventLine
from elastane.run.nouns.spec import TorchrunContract
from elastane.run.observability.attempts import RESUMED
from elastane.run.observability.chart import (
    LEFT,
    MARK_ROW_PX,
    MARKS,
    MARKS_PX,
    MOST_MARKS,
    RIGHT,
    WIDTH,
    draw_legend,
)
from elastane.run.observability.drawing import Axis, choose_ticks, draw_frame, format_number
from elastane.run.observability.facts import Facts

HEIGHT_PX = 150
LONGEST_TICKS_S = 600.0
"""A longer run has an axis of minutes."""
MINUTE_S = 60.0

Tile = tuple[str, str, str]
"""Name, value, and the words below it."""
STARTED = "generation.started"
FAILURES = frozenset({"worker.failed", "worker.hung"})
ENDS = frozenset({"stop.announced", *OUTCOMES})


# -- the worlds of a run of an unmodified script: when which workers ran, and how long none did. Pure ----


class WorldSpan(msgspec.Struct, frozen=True):
    """One world: from the start of its processes to the announcement of their stop.

    Args:
        began_s: seconds since 1970.
        ended_s: seconds since 1970; that of the last event if the world still runs.
        workers: how many.
        first: no world of the same attempt came before.
    """

    began_s: float
    ended_s: float
    workers: int
    first: bool


class WorldFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The most important numbers of a run of an unmodified script.

    Args:
        workers: fewest and most; None before the first start.
        starts: number of worlds.
        deaths: processes that were ended from outside.
        failures: of the script; of several processes that fail, each counts.
        longest_stop_s: the longest time from an announced stop to the next start; None without a restart.
        stopped_s: the sum of these times.
    """

    workers: tuple[int, int] | None
    starts: int
    deaths: int
    failures: int
    longest_stop_s: float | None
    stopped_s: float


def find_worlds(events: Sequence[EventLine]) -> list[WorldSpan]:
    """Return the worlds of a run in the order of their starts."""
    found: list[WorldSpan] = []
    open_world = resumed = False
    for event in events:
        resumed = resumed or event.kind == RESUMED
        if open_world:
            end_s = max(found[-1].began_s, event.time)
            found[-1] = msgspec.structs.replace(found[-1], ended_s=end_s)
        if event.kind == STARTED:
            first, resumed = resumed or not found, False
            found.append(WorldSpan(event.time, event.time, len(event.workers), first))
        open_world = event.kind == STARTED or (open_world and event.kind not in ENDS)
    return found


def list_stops_s(worlds: Iterable[WorldSpan]) -> list[float]:
    """Return how long no world ran before each restart within an attempt."""
    return [max(0.0, after.began_s - before.ended_s) for before, after in pairwise(worlds) if not after.first]


def collect_world_facts(events: Sequence[EventLine]) -> WorldFacts:
    worlds = find_worlds(events)
    sizes = [world.workers for world in worlds]
    stops_s = list_stops_s(worlds)
    return WorldFacts(
        workers=(min(sizes), max(sizes)) if sizes else None,
        starts=len(worlds),
        deaths=sum(event.kind == "worker.died" for event in events),
        failures=sum(event.kind in FAILURES for event in events),
        longest_stop_s=max(stops_s, default=None),
        stopped_s=sum(stops_s),
    )


def list_world_tiles(facts: Facts, contract: TorchrunContract, events: Sequence[EventLine]) -> list[Tile]:
    """Return the tiles of an unmodified script, in place of those about steps."""
    worlds = collect_world_facts(events)
    each = f"{contract.processes} process{'es' * (contract.processes > 1)} in each, fewest to most"
    share = 100 * worlds.stopped_s / facts.wall_s if facts.wall_s else 0.0
    return [
        ("workers", _format_span(worlds), each),
        ("starts", f"{worlds.starts:,}", "of all processes together"),
        ("deaths", f"{worlds.deaths:,}", "processes ended from outside"),
        ("failures", f"{worlds.failures:,}", f"of the script; --max-restarts {contract.max_restarts}"),
        (
            "longest restart",
            "-" if worlds.longest_stop_s is None else f"{worlds.longest_stop_s:.2f} s",
            "announced stop to next start",
        ),
        ("stopped", f"{worlds.stopped_s:.2f} s", f"{share:.1f} % of the wall time"),
        ("wall time", format_duration(facts.wall_s), "first record to last"),
        ("events", f"{facts.changes:,}", "changes of the run"),
    ]


def _format_span(worlds: WorldFacts) -> str:
    if worlds.workers is None:
        return "-"
    low, high = worlds.workers
    return f"{low}" if low == high else f"{low}\u2013{high}"


def render_worlds_card(events: Sequence[EventLine]) -> Iterable[str]:
    """Yield a chart of the workers over time; empty before the first start."""
    worlds = find_worlds(events)
    if not worlds:
        yield '<p class="soft">No process has started.</p>'
        return
    began_s = events[0].time
    last_s = max(worlds[-1].ended_s, events[-1].time) - began_s
    unit, unit_s = ("min", MINUTE_S) if last_s > LONGEST_TICKS_S else ("s", 1.0)
    x = Axis(0.0, max(last_s, 1.0) / unit_s, LEFT, WIDTH - RIGHT)

    def place(time_s: float) -> float:
        return x(max(0.0, time_s - began_s) / unit_s)

    top = MARKS_PX + 34.0
    bottom = top + HEIGHT_PX
    yield '<figure class="card">'
    yield (
        f'<svg viewBox="0 0 {WIDTH} {bottom + 40:.0f}" role="img" '
        f'aria-label="Workers over {format_duration(last_s)}">'
    )
    yield from _draw_worlds(worlds, place, x, top, bottom)
    for value in choose_ticks(x.low, x.high, 10):
        yield f'<path class="base" d="M{x(value)} {bottom}v5"/>'
        yield f'<text class="step" x="{x(value)}" y="{bottom + 19}">{format_number(value)}</text>'
    yield f'<text class="note" x="{WIDTH - RIGHT}" y="{bottom + 35}">time, {unit}</text>'
    yield from _draw_marks(events, place, bottom)
    marked = [MARKS[event.kind] for event in events if event.kind in MARKS]
    yield f'</svg><figcaption class="legend">{draw_legend(marked)}</figcaption></figure>'
    yield '<p class="soft">An unmodified script reports no steps; its own files show its progress.</p>'


def _draw_worlds(
    worlds: Sequence[WorldSpan], place: Callable[[float], float], x: Axis, top: float, bottom: float
) -> Iterable[str]:
    y = Axis(0, max(world.workers for world in worlds) * 1.12, bottom, top)
    yield from draw_frame("workers", y, x, top, bottom, whole=True)
    for world in worlds:
        count = f"{world.workers} worker{'s' * (world.workers != 1)}"
        title = f"{count} for {format_duration(world.ended_s - world.began_s)}"
        edge = f"M{place(world.began_s)} {bottom}V{y(world.workers)}H{place(world.ended_s)}V{bottom}"
        yield f'<path class="area" d="{edge}Z"><title>{title}</title></path><path class="edge" d="{edge}"/>'


def _draw_marks(events: Sequence[EventLine], place: Callable[[float], float], bottom: float) -> Iterable[str]:
    """Yield a mark for each change; those of neighbours that are near stand above each other."""
    rows = [-1e9] * 3
    rules, marks = [], []
    for event in [event for event in events if event.kind in MARKS][:MOST_MARKS]:
        style, at = MARKS[event.kind], place(event.time)
        row = next((row for row, taken in enumerate(rows) if taken <= at), None)
        row = min(range(len(rows)), key=rows.__getitem__) if row is None else row
        rows[row] = at + MARK_ROW_PX
        y = MARKS_PX - 6 - row * MARK_ROW_PX
        words = f"{event.who} {style.label}" + (f" ({event.why})" if event.why else "")
        rules.append(f'<path class="rule {style.colour}" d="M{at} {y + 8}V{bottom:.1f}"/>')
        marks.append(
            f'<g class="mark {style.colour}" transform="translate({at} {y})"><title>{escape(words)}</title>'
            f'<circle r="10"/><path d="{style.glyph}"/></g>'
        )
    yield from (*rules, *marks)
