"""``report.html``: all arms on one self-contained page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from pilot.checks import Check
from pilot.drawing import chart, colours, legend
from pilot.figures import Figures
from pilot.recorded import Recorded
from pilot.scenario import Scenario
from pilot.words import rows, seconds

TILES: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("in the queue, p50", lambda one: seconds(one.queue.p50_s)),
    ("submitted to done, mean", lambda one: seconds(one.done_s)),
    ("devices in use", lambda one: f"{one.utilisation:.0%}"),
    ("interventions", lambda one: str(one.interventions)),
)


def page(
    scenario: Scenario,
    arms: Sequence[Recorded],
    figures: Mapping[str, Figures],
    checks: Sequence[Check],
    machine: Mapping[str, str | int],
) -> str:
    """Return the page, with all names escaped."""
    css = (files("elastane.observability") / "page.css").read_text()
    own = (Path(__file__).parent / "page.css").read_text()
    until_s = max(arm.ended_s for arm in arms) + 2
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Pilot - elastane</title><style>{css}{own}</style></head><body><main>",
        *_heading(scenario, checks),
        *_tiles(figures),
        *(part for arm in arms for part in _arm(arm, scenario, until_s)),
        *_figures(figures),
        *_checks(checks),
        *(part for arm in arms for part in _events(arm)),
        *_footer(scenario, machine),
        "</main></body></html>",
        "",
    ]
    return "\n".join(parts)


def _heading(scenario: Scenario, checks: Sequence[Check]) -> Iterable[str]:
    good = all(check.good for check in checks)
    outcome, words = ("finished", "as it should be") if good else ("failed", "not as it should be")
    yield f'<header><h1>{escape(scenario.name)}</h1><span class="badge {outcome}">{words}</span></header>'
    yield f'<p class="soft">{len(scenario.jobs)} jobs, submitted at the same seconds while the same things'
    yield "happen to the cluster: once they may stretch (elastic), once each has the one size it would like"
    yield "best (fixed).</p>"


def _tiles(figures: Mapping[str, Figures]) -> Iterable[str]:
    first, *others = figures
    yield '<section class="card tiles">'
    for name, told in TILES:
        against = ", ".join(f"{escape(arm)}: {told(figures[arm])}" for arm in others)
        yield f'<div class="tile"><span class="name">{name}</span><b>{told(figures[first])}</b>'
        yield f"<span>{against}</span></div>"
    yield "</section>"


def _arm(arm: Recorded, scenario: Scenario, until_s: float) -> Iterable[str]:
    yield f'<h2>{escape(arm.name.capitalize())}</h2><figure class="card">{chart(arm, scenario, until_s)}'
    yield '<figcaption class="keys">'
    for job, colour in colours(arm).items():
        yield f'<span><i style="background:{colour}"></i>{escape(job)}</span>'
    yield '</figcaption><figcaption class="keys">'
    for colour, glyph, word in legend(arm.deeds):
        sign = f'<svg class="glyph {colour}" viewBox="-9 -9 18 18"><path d="{glyph}"/></svg>'
        yield f"<span>{sign}{word}</span>"
    yield "</figcaption></figure>"


def _figures(figures: Mapping[str, Figures]) -> Iterable[str]:
    (_, *arms), *lines = rows(figures)
    yield '<h2>Figures</h2><div class="card scroll"><table><thead><tr><th></th>'
    yield "".join(f'<th class="n">{escape(arm)}</th>' for arm in arms)
    yield "</tr></thead><tbody>"
    for name, *values in lines:
        cells = "".join(f'<td class="n">{escape(value)}</td>' for value in values)
        yield f'<tr><td class="w">{escape(name)}</td>{cells}</tr>'
    yield "</tbody></table></div>"


def _checks(checks: Sequence[Check]) -> Iterable[str]:
    yield '<h2>Checked</h2><div class="card scroll"><table><tbody>'
    for check in checks:
        colour, word = ("good", "yes") if check.good else ("bad", "NO")
        yield f'<tr><td class="k {colour}">{word}</td><td class="w">{escape(check.text)}</td></tr>'
    yield "</tbody></table></div>"


def _events(arm: Recorded) -> Iterable[str]:
    """Return the deeds from outside and the events of the cluster, in the order of time."""
    told = [(event.time_s - arm.began_s, event.kind, event.job, event.message) for event in arm.events]
    told += [(deed.at_s, deed.kind, deed.job, deed.text) for deed in arm.deeds if deed.kind != "submit"]
    yield f"<details><summary>All that happened in the {escape(arm.name)} arm</summary>"
    yield '<div class="card scroll"><table><thead><tr><th class="n">second</th><th>what</th><th>job</th>'
    yield "<th></th></tr></thead><tbody>"
    for at_s, kind, job, message in sorted(told):
        yield f'<tr><td class="n">{at_s:.1f}</td><td class="k">{escape(kind)}</td><td>{escape(job)}</td>'
        yield f'<td class="w">{escape(message)}</td></tr>'
    yield "</tbody></table></div></details>"


def _footer(scenario: Scenario, machine: Mapping[str, str | int]) -> Iterable[str]:
    on = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}"
    yield f"<footer>{escape(on)}, Python {machine['python']}, torch {machine['torch']}, elastane"
    yield f"{machine['elastane']}. A device takes {scenario.microbatch_s:g} s for a microbatch: most of it is"
    yield "slept, so that more devices than cores fit on this machine. All else is real.</footer>"
