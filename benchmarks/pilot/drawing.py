"""The chart of an arm as inline SVG: the devices of each pool by job, and a lane for each job, over time."""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from elastane.cluster.nouns.rest import Job
from elastane.run.observability.chart import CHEVRON, CROSS, DIAMOND, DOWN, RING, SQUARE, STAR, UP
from elastane.run.observability.drawing import Axis, add_margin, choose_ticks, draw_frame, draw_path

from pilot.record import Action, ArmRecord, Observation
from pilot.scenario import History, Scenario, compute_capacity

WIDTH, LEFT, RIGHT = 1120, 110, 18
MARKS_PX, MARK_ROWS, MARK_ROW_PX = 56, 3, 17
DEVICE_PX, LANE_PX, WORKER_PX, GAP_PX = 13, 36, 4.6, 38
LOSSES_PX = 190

HUES = (236, 158, 32, 286, 200, 350)
"""The hues of teams, in degrees."""

SIGNS = {
    "submit": ("good", UP, "submitted"),
    "kill": ("bad", CROSS, "SIGKILL"),
    "capacity": ("ask", DIAMOND, "capacity reported"),
    "reserve": ("warn", RING, "calendar"),
    "price": ("score", STAR, "price"),
    "priority": ("core", CHEVRON, "priority"),
    "joined": ("good", UP, "worker joined"),
    "left": ("warn", DOWN, "worker left"),
    "died": ("bad", SQUARE, "worker died"),
    "absent": ("warn", RING, "site absent"),
    "present": ("good", RING, "site back"),
}
"""The sign of each kind of action: a class, a glyph, a word."""

Losses = Sequence[tuple[float, float | None]]
"""The second of the pilot at which each step ended, and its loss; None: it had none."""


def assign_colours(arm: ArmRecord) -> dict[str, str]:
    """Return a colour for each job: a hue for each team, a shade for each of its jobs."""
    teams = list(dict.fromkeys(job.team for job in arm.jobs))
    found: dict[str, str] = {}
    for hue, team in zip(HUES * len(teams), teams, strict=False):
        mine = [job.name for job in arm.jobs if job.team == team]
        found |= {name: f"hsl({hue} 52% {44 + 13 * (place % 4)}%)" for place, name in enumerate(mine)}
    return found


def draw_chart(arm: ArmRecord, scenario: Scenario, until_s: float, losses: Losses = ()) -> str:
    """Return the chart, with all names escaped.

    Args:
        arm: the arm to draw.
        scenario: its pools have the devices.
        until_s: the end of the axis, in seconds.
        losses: those of its only job; empty: the chart has none.
    """
    drawing = _Drawing(arm, Axis(0.0, until_s, LEFT, WIDTH - RIGHT))
    top = MARKS_PX + 34.0
    parts: list[str] = []
    for pool, history in compute_capacity(scenario).items():
        bottom = top + DEVICE_PX * (max(devices for _, devices in history) + 0.5)
        parts += drawing.draw_pool(pool, history, top, bottom)
        top = bottom + GAP_PX
    parts.append(
        f'<text class="title" x="{LEFT}" y="{top - 9}">workers of each job; dotted: the job waits</text>'
    )
    for job in arm.jobs:
        top += LANE_PX
        parts += drawing.draw_lane(job, top)
    if losses:
        top += GAP_PX
        parts += drawing.draw_losses(losses, top, top + LOSSES_PX)
        top += LOSSES_PX
    parts += drawing.draw_ticks(top, until_s)
    label = f"Devices and jobs of the {escape(arm.name)} arm"
    head = f'<svg viewBox="0 0 {WIDTH} {top + 42:.0f}" role="img" aria-label="{label}">'
    return "".join([head, *drawing.draw_marks(top), *parts, "</svg>"])


class _Drawing:
    def __init__(self, arm: ArmRecord, x: Axis) -> None:
        self.arm, self.x, self.colours = arm, x, assign_colours(arm)

    def draw_pool(self, pool: str, history: History, top: float, bottom: float) -> Iterable[str]:
        """Draw the devices in use, stacked by job in order of submission, and a line for all devices."""
        x = self.x
        title = f"{escape(pool)}: devices in use, by job; line: available devices"
        yield f'<text class="title" x="{LEFT}" y="{top - 9}">{title}</text>'
        for value in range(0, max(devices for _, devices in history) + 1, 2):
            y = bottom - DEVICE_PX * value
            yield f'<path class="grid" d="M{x.start} {y}H{x.stop}"/>'
            yield f'<text class="tick" x="{LEFT - 9}" y="{y + 4}">{value}</text>'
        for begin_s, end_s, using in self._list_uses(pool):
            y = bottom
            for job, devices in using.items():
                y -= DEVICE_PX * devices
                words = f"{escape(job)}: {devices} of {escape(pool)} from second {begin_s:.0f} to {end_s:.0f}"
                yield self._draw_bar(job, (begin_s, end_s), y, DEVICE_PX * devices, words)
        ends_s = [*(from_s for from_s, _ in history[1:]), x.high]
        places = [
            f"{x(from_s)} {bottom - DEVICE_PX * devices}H{x(min(end_s, x.high))}"
            for (from_s, devices), end_s in zip(history, ends_s, strict=True)
            if from_s < x.high
        ]
        yield f'<path class="there" d="M{"L".join(places)}"/>'
        yield f'<path class="base" d="M{x.start} {bottom}H{x.stop}"/>'

    def draw_lane(self, job: Job, base: float) -> Iterable[str]:
        """Draw a bar as high as the job's number of workers; dotted while it has none."""
        x, arm = self.x, self.arm
        submitted_s, ended_s = job.submitted_s - arm.began_s, (job.ended_s or 0.0) - arm.began_s
        yield f'<text class="tick" x="{LEFT - 9}" y="{base - 5}">{escape(job.name)}</text>'
        yield f'<path class="grid" d="M{x.start} {base}H{x.stop}"/>'
        yield f'<path class="waits" d="M{x(submitted_s)} {base - 2}H{x(ended_s)}"/>'
        stretches = [
            list(some)
            for _, some in groupby(self._list_observations(job.name), lambda observation: observation.size)
        ]
        ends_s = [*(some[0].at_s for some in stretches[1:]), ended_s]
        for some, end_s in zip(stretches, ends_s, strict=True):
            first, size = some[0], some[0].size
            words = f"{escape(job.name)}: {size} workers from second {first.at_s:.0f}, step {first.step}"
            if size:
                yield self._draw_bar(
                    job.name, (first.at_s, end_s), base - WORKER_PX * size, WORKER_PX * size, words
                )
        if job.state == "failed":
            at = f"translate({x(ended_s) + 9} {base - 9}) scale(.8)"
            yield f'<g class="mark bad" transform="{at}"><path d="{SQUARE}"/><title>failed</title></g>'

    def draw_losses(self, losses: Losses, top: float, bottom: float) -> Iterable[str]:
        """Draw the loss over time."""
        known = [loss for _, loss in losses if loss is not None]
        y = Axis(*add_margin(min(known), max(known), floor=0.0), bottom, top)
        yield from draw_frame("loss of each round, over the sites that took part", y, self.x, top, bottom)
        places = ((self.x(at_s), None if loss is None else y(loss)) for at_s, loss in losses)
        yield f'<path class="curve" d="{draw_path(places)}"/>'

    def draw_ticks(self, bottom: float, until_s: float) -> Iterable[str]:
        for value in choose_ticks(0.0, until_s, 12, whole=True):
            yield f'<path class="base" d="M{self.x(value)} {bottom}v5"/>'
            yield f'<text class="step" x="{self.x(value)}" y="{bottom + 19}">{value:,.0f}</text>'
        yield f'<text class="note" x="{WIDTH - RIGHT}" y="{bottom + 35}">seconds</text>'

    def draw_marks(self, bottom: float) -> Iterable[str]:
        """Draw each action from outside at its time."""
        rules, signs = [], []
        free_from = [0.0] * MARK_ROWS
        for action in self.arm.actions:
            colour, glyph, _ = SIGNS[action.kind]
            at = self.x(action.at_s)
            row = next((row for row, free in enumerate(free_from) if free <= at), 0)
            free_from[row] = at + MARK_ROW_PX
            y = MARKS_PX - MARK_ROW_PX * row
            words = f"second {action.at_s:.0f}: {escape(action.text)}"
            rules.append(f'<path class="rule {colour}" d="M{at} {y + 8}V{bottom}"/>')
            inside = f'<circle r="10"/><path d="{glyph}"/><title>{words}</title>'
            signs.append(f'<g class="mark {colour}" transform="translate({at} {y})">{inside}</g>')
        return [*rules, *signs]

    def _draw_bar(self, job: str, span_s: tuple[float, float], y: float, height: float, words: str) -> str:
        left, right = map(self.x, span_s)
        # Slightly wider than its time, so that neighbours touch.
        width = max(0.0, right - left) + 0.3
        place = f'x="{left}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}"'
        return f'<rect fill="{self.colours[job]}" {place}><title>{words}</title></rect>'

    def _list_observations(self, job: str) -> Sequence[Observation]:
        return [observation for observation in self.arm.observations if observation.job == job]

    def _list_uses(self, pool: str) -> Iterable[tuple[float, float, dict[str, int]]]:
        """Yield ``(from, until, devices by job)`` between changes; the jobs in the order of submission."""
        using = dict.fromkeys((job.name for job in self.arm.jobs), 0)
        begin_s = 0.0
        for at_s, some in groupby(self.arm.observations, lambda observation: observation.at_s):
            after = using | {observation.job: observation.uses.get(pool, 0) for observation in some}
            if after != using:
                yield begin_s, at_s, {job: devices for job, devices in using.items() if devices}
                begin_s, using = at_s, after
        yield begin_s, self.arm.ended_s, {job: devices for job, devices in using.items() if devices}


def build_legend(actions: Sequence[Action]) -> Iterable[tuple[str, str, str]]:
    """Return class, glyph and word of each kind of action that occurs."""
    there = {action.kind for action in actions}
    return [sign for kind, sign in SIGNS.items() if kind in there]
