"""``report.html``: all arms on one self-contained page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import chain
from pathlib import Path

from pilot.checks import Check
from pilot.drawing import assign_colours, build_legend, draw_chart
from pilot.figures import Figures
from pilot.record import ArmRecord
from pilot.scenario import Scenario
from pilot.words import build_rows, format_seconds

TILES: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("in the queue, p50", lambda one: format_seconds(one.queue.p50_s)),
    ("submission to end, mean", lambda one: format_seconds(one.done_s)),
    ("devices in use", lambda one: f"{one.utilisation:.0%}"),
    ("interventions", lambda one: str(one.interventions)),
)


def render_page(
    scenario: Scenario,
    arms: Sequence[ArmRecord],
    figures: Mapping[str, Figures],
    checks: Sequence[Check],
    machine: Mapping[str, str | int],
) -> str:
    """Return the page, with all names escaped."""
    until_s = max(arm.ended_s for arm in arms) + 2
    first, *others = figures
    tiles = [
        (name, show(figures[first]), ", ".join(f"{arm}: {show(figures[arm])}" for arm in others))
        for name, show in TILES
    ]
    about = f"{len(scenario.jobs)} jobs on a cluster, in two arms with the same events"
    return build_page(
        render_heading(
            scenario, checks, f"{about}: elastic jobs, and jobs of a fixed size, each its ideal one."
        ),
        render_tiles(tiles),
        *(render_arm(arm, draw_chart(arm, scenario, until_s)) for arm in arms),
        render_table("Figures", *build_rows(figures)),
        render_checks(checks),
        *map(render_events, arms),
        render_footer(scenario, machine),
    )


def build_page(*parts: Iterable[str]) -> str:
    """Return a page with these parts, of which all names are escaped."""
    css = (files("elastane.run.observability") / "page.css").read_text()
    own = (Path(__file__).parent / "page.css").read_text()
    lines = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Pilot - elastane</title><style>{css}{own}</style></head><body><main>",
        *chain.from_iterable(parts),
        "</main></body></html>",
        "",
    ]
    return "\n".join(lines)


def render_heading(scenario: Scenario, checks: Sequence[Check], about: str) -> Iterable[str]:
    good = all(check.good for check in checks)
    outcome, words = ("finished", "all checks passed") if good else ("failed", "a check failed")
    yield f'<header><h1>{escape(scenario.name)}</h1><span class="badge {outcome}">{words}</span></header>'
    yield f'<p class="soft">{escape(about)}</p>'


def render_tiles(tiles: Iterable[tuple[str, str, str]]) -> Iterable[str]:
    """Yield four tiles, of which each has a name, a figure and a line below it."""
    yield '<section class="card tiles">'
    for name, figure, below in tiles:
        yield f'<div class="tile"><span class="name">{escape(name)}</span><b>{escape(figure)}</b>'
        yield f"<span>{escape(below)}</span></div>"
    yield "</section>"


def render_arm(arm: ArmRecord, chart: str) -> Iterable[str]:
    yield f'<h2>{escape(arm.name.capitalize())}</h2><figure class="card">{chart}'
    yield '<figcaption class="keys">'
    for job, colour in assign_colours(arm).items():
        yield f'<span><i style="background:{colour}"></i>{escape(job)}</span>'
    yield '</figcaption><figcaption class="keys">'
    for colour, glyph, word in build_legend(arm.actions):
        sign = f'<svg class="glyph {colour}" viewBox="-9 -9 18 18"><path d="{glyph}"/></svg>'
        yield f"<span>{sign}{word}</span>"
    yield "</figcaption></figure>"


def render_table(title: str, head: Sequence[str], *lines: Sequence[str]) -> Iterable[str]:
    """Yield a table; each line begins with its name."""
    yield f'<h2>{escape(title)}</h2><div class="card scroll"><table><thead><tr><th>{escape(head[0])}</th>'
    yield "".join(f'<th class="n">{escape(word)}</th>' for word in head[1:])
    yield "</tr></thead><tbody>"
    for name, *values in lines:
        cells = "".join(f'<td class="n">{escape(value)}</td>' for value in values)
        yield f'<tr><td class="w">{escape(name)}</td>{cells}</tr>'
    yield "</tbody></table></div>"


def render_checks(checks: Sequence[Check]) -> Iterable[str]:
    yield '<h2>Checks</h2><div class="card scroll"><table><tbody>'
    for check in checks:
        colour, word = ("good", "yes") if check.good else ("bad", "NO")
        yield f'<tr><td class="k {colour}">{word}</td><td class="w">{escape(check.text)}</td></tr>'
    yield "</tbody></table></div>"


def render_events(arm: ArmRecord) -> Iterable[str]:
    """Return the actions from outside and the events of the cluster, in the order of time."""
    rows = [(event.time_s - arm.began_s, event.kind, event.job, event.message) for event in arm.events]
    rows += [
        (action.at_s, action.kind, action.job, action.text)
        for action in arm.actions
        if action.kind != "submit"
    ]
    yield f"<details><summary>Events of the {escape(arm.name)} arm</summary>"
    yield '<div class="card scroll"><table><thead><tr><th class="n">second</th><th>kind</th><th>job</th>'
    yield "<th></th></tr></thead><tbody>"
    for at_s, kind, job, message in sorted(rows):
        yield f'<tr><td class="n">{at_s:.1f}</td><td class="k">{escape(kind)}</td><td>{escape(job)}</td>'
        yield f'<td class="w">{escape(message)}</td></tr>'
    yield "</tbody></table></div></details>"


def render_footer(scenario: Scenario, machine: Mapping[str, str | int]) -> Iterable[str]:
    on = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}"
    yield f"<footer>{escape(on)}, Python {machine['python']}, torch {machine['torch']}, elastane"
    yield f"{machine['elastane']}. A device takes {scenario.microbatch_s:g} s for a microbatch. The worker"
    yield "sleeps for most of it, so more devices than cores fit on this machine. All else is real.</footer>"
