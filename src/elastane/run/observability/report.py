"""``report.html``: a whole run on one page, which needs only a browser."""

import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files

import msgspec

from elastane.common.atomic_file import replace_file
from elastane.common.durations import format_duration
from elastane.common.errors import BadInput
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import NO_LIMIT, CheckpointPolicy, RunRecord, RunSpec
from elastane.run.observability.chart import MARKS, Chart, build_chart, draw_glyph, draw_legend
from elastane.run.observability.curves import build_series, write_curve_cards
from elastane.run.observability.drawing import format_number
from elastane.run.observability.evaluations import read_evaluation_means
from elastane.run.observability.facts import Facts, collect_facts
from elastane.run.observability.quantities import describe_agreement, format_copies, format_ms
from elastane.run.observability.report_sections import (
    build_checkpoint_tile,
    render_attempts_table,
    render_checkpoint_table,
    render_text_artifacts,
)
from elastane.run.observability.report_worlds import Tile, list_world_tiles, render_worlds_card
from elastane.run.observability.run_events import (
    describe_event_details,
    format_event_value,
    name_event_source,
)
from elastane.run.observability.run_files import Recorded
from elastane.run.observability.series import find_step
from elastane.run.observability.verify import Verdict

MOST_ROWS = 3000
"""The most events in the table; with more the page would exceed two megabytes."""


def write_report(run: Recorded, verdict: Verdict | None = None) -> RunDir:
    """Write the report of a run into its directory, atomically.

    Args:
        verdict: the result of verifying its ledger, if it was verified.

    Raises:
        BadInput: the directory cannot be written to.
    """
    page = render_report(run, verdict)
    try:
        replace_file(run.run_dir.report, page.encode(), durable=False)
    except OSError as error:
        raise BadInput(f"cannot write {run.run_dir.report}: {error.strerror}") from error
    return run.run_dir


def render_report(run: Recorded, verdict: Verdict | None = None) -> str:
    """Return the page; every text from the run is escaped."""
    facts = collect_facts(run)
    pinned = run.record.pinned
    chart = build_chart(run.ledger, run.events, pinned.virtual_ranks if pinned else 1) if run.ledger else None
    contract = run.record.spec.contract
    own = files("elastane.run.observability")
    body = [
        *render_heading(run, facts),
        *render_tiles(
            list_tiles(facts) if contract is None else list_world_tiles(facts, contract, run.events),
            digest="" if facts.digest is None else facts.digest[0],
        ),
        *(render_steps_card(chart) if contract is None else render_worlds_card(run.events)),
        *render_curves(run),
        *render_event_table(run),
        *render_evaluation_table(run),
        *render_text_artifacts(run),
        *render_attempts_table(run),
        *render_checkpoint_table(run),
        *render_columns([*render_phase_bar(facts), *render_proof(verdict)], [*render_choices(run)]),
        render_footer(run),
    ]
    hover = render_script_json(chart.hover) if chart else "null"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(run.record.spec.name)} - elastane</title>",
            f"<style>{(own / 'page.css').read_text()}</style></head><body><main>",
            *body,
            '</main><div id="tip"></div>',
            f'<script type="application/json" id="hover">{hover}</script>',
            f"<script>{(own / 'page.js').read_text()}</script></body></html>",
            "",
        ]
    )


def render_columns(*columns: Sequence[str]) -> Iterable[str]:
    """Yield the columns that are not empty, side by side."""
    yield '<div class="columns">'
    for column in filter(None, columns):
        yield from ("<section>", *column, "</section>")
    yield "</div>"


def render_script_json(value: object) -> str:
    """Return JSON that cannot end the script element that contains it."""
    text = msgspec.json.encode(value).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def render_heading(run: Recorded, facts: Facts) -> Iterable[str]:
    spec = run.record.spec
    yield f"<header><h1>{escape(spec.name)}</h1>"
    yield f'<span class="badge {facts.outcome}">{facts.outcome}</span></header>'
    yield f'<p class="command mono">{escape(format_command(run.record))}</p>'
    if facts.origin:
        yield f'<p class="soft">Began from {escape(facts.origin)}</p>'
    if facts.why and (facts.outcome != "finished" or facts.steps != facts.planned_steps):
        tracebacks = (event.detail.get("traceback") for event in reversed(run.events))
        words = next((str(text) for text in tracebacks if text), facts.why)
        yield f'<pre class="card reason {facts.outcome}">{escape(words)}</pre>'


def format_command(record: RunRecord) -> str:
    """Return the command as typed, or an equivalent one if it was not recorded."""
    spec = record.spec
    options = record.typed if record.typed is not None else list_run_options(spec)
    return shlex.join(["elastane", "run", *options, *spec.program])


def list_run_options(spec: RunSpec) -> list[str]:
    """Return the options of ``elastane run`` for a spec, without those that have their default values."""
    limited = spec.max_workers != NO_LIMIT
    wanted: list[tuple[str, object]] = [("--workers", f"{spec.min_workers}:{spec.max_workers}")] * limited
    if not spec.self_sizing and spec.min_workers < spec.max_workers:
        wanted.append(("--start", spec.start))
    usual = RunSpec(name="", script="")
    fields = {
        "--virtual-ranks": "virtual_ranks",
        "--copies": "copies",
        "--convergence": "convergence",
        "--numerics": "numerics",
        "--seed": "seed",
        "--threads": "threads",
        "--transport": "transport",
        "--digest-every": "digest_every",
        "--spot-checks": "spot_checks",
        "--max-shard-size": "max_shard_bytes",
    }
    wanted += [
        (option, getattr(spec, field))
        for option, field in fields.items()
        if getattr(spec, field) != getattr(usual, field)
    ]
    if spec.log:
        wanted.append(("--log", ",".join(spec.log)))
    words = [f"{word}" for pair in (*wanted, *list_checkpoint_options(spec.checkpoints)) for word in pair]
    return [*words, "--save-optimizer"] if spec.save_optimizer else words


def list_checkpoint_options(policy: CheckpointPolicy | None) -> Iterable[tuple[str, object]]:
    if policy is None:
        yield "--checkpoint-every", "never"
        return
    usual = CheckpointPolicy()
    if policy.every_s is not None:
        yield "--checkpoint-every", f"{policy.every_s:g} s"
    elif policy.every_steps is not None:
        yield "--checkpoint-every", f"{policy.every_steps} steps"
    elif not policy.auto:
        yield "--checkpoint-every", "never"
    at = [word for word, on in (("epoch", policy.each_epoch), ("evaluation", policy.each_evaluation)) if on]
    if at:
        yield "--checkpoint-at", ",".join(at)
    if policy.url:
        yield "--checkpoint-dir", policy.url
    if policy.keep_last != usual.keep_last:
        yield "--keep-last", policy.keep_last
    if policy.keep_every is not None:
        yield "--keep-every", policy.keep_every
    if policy.keep_best is not None:
        yield "--keep-best", ":".join(policy.keep_best)


def list_tiles(facts: Facts) -> list[Tile]:
    rows = [
        ("steps", f"{facts.steps:,}", f"of {facts.planned_steps:,}" if facts.planned_steps else ""),
        (
            "final loss",
            "-" if facts.loss is None else format_number(facts.loss),
            f"{facts.samples:,} samples",
        ),
        ("workers", format_worker_span(facts.workers), "fewest to most"),
        build_checkpoint_tile(facts) or ("events", f"{facts.changes:,}", "changes of the run"),
        ("longest pause", *build_pause_tile(facts)),
        ("usual step", "-" if facts.usual_step_ms is None else format_ms(facts.usual_step_ms), "median"),
        ("wall time", format_duration(facts.wall_s), "first record to last"),
    ]
    if facts.digest is None:
        rows.append(("digest", "-", "none recorded"))
    else:
        rows.append(("digest", facts.digest[0][:12], f"parameters, step {facts.digest[1]:,}"))
    return rows


def render_tiles(rows: Iterable[Tile], digest: str) -> Iterable[str]:
    yield '<section class="card tiles">'
    for name, value, below in rows:
        hint = f' title="{escape(digest)}"' if name == "digest" and digest else ""
        style = ' class="mono"' if name == "digest" else ""
        yield f'<div class="tile"{hint}><span class="name">{name}</span><b{style}>{escape(value)}</b>'
        yield f"<span>{escape(below) or '&nbsp;'}</span></div>"
    yield "</section>"


def format_worker_span(workers: tuple[int, int] | None) -> str:
    if workers is None:
        return "-"
    low, high = workers
    return f"{low}" if low == high else f"{low}\u2013{high}"


def build_pause_tile(facts: Facts) -> tuple[str, str]:
    if facts.pause_ms is None:
        return "-", "no change of workers"
    usual = "" if facts.pause_steps is None else f"{facts.pause_steps:.2f} steps"
    where = "" if facts.pause_step is None else f"at step {facts.pause_step:,}"
    return format_ms(facts.pause_ms), ", ".join(word for word in (usual, where) if word)


def render_steps_card(chart: Chart | None) -> Iterable[str]:
    if chart is None:
        yield '<p class="soft">No step has committed.</p>'
        return
    yield from render_chart_card(chart)


def render_chart_card(chart: Chart) -> Iterable[str]:
    styles = [style for style in MARKS.values() if style in chart.marked]
    yield '<figure class="card">'
    # The buttons need no script: each shows the drawings of its class.
    for view in chart.views if len(chart.views) > 1 else ():
        checked = " checked" if view is chart.views[0] else ""
        yield f'<input type="radio" name="view" id="view-{view.name}" value="{view.name}"{checked}>'
        yield f'<label for="view-{view.name}">{view.label}</label>'
    yield chart.svg
    if styles:
        entries = draw_legend(styles)
        if 'class="again"' in chart.svg:
            entries += '<span><i class="again"></i>steps made again</span>'
        yield f'<figcaption class="legend">{entries}</figcaption>'
    yield "</figure>"


def render_curves(run: Recorded) -> Iterable[str]:
    if run.ledger:
        yield from write_curve_cards(
            build_series(run.ledger, run.events), run.ledger[0].step, run.ledger[-1].step
        )


def render_event_table(run: Recorded) -> Iterable[str]:
    yield f"<h2>Events</h2>{'' if run.events else '<p class=soft>None.</p>'}"
    if not run.events:
        return
    started, has_steps = run.events[0].time, run.record.spec.contract is None
    yield '<div class="card scroll" tabindex="0"><table><thead><tr><th class="n">time</th>'
    yield '<th class="n">step</th>' if has_steps else ""
    yield "<th>event</th><th>process</th><th>reason</th>"
    yield f"{'<th>pause of healthy workers</th>' if has_steps else ''}</tr></thead><tbody>"
    for event in run.events[:MOST_ROWS]:
        style = MARKS.get(event.kind)
        step = find_step(event, run.ledger)
        yield '<tr class="quiet">' if style is None else "<tr>"
        yield f'<td class="n">{event.time - started:,.2f} s</td>'
        if has_steps:
            yield f'<td class="n">{f"{step:,}" if step else ""}</td>'
        yield f'<td class="k">{draw_glyph(style)}{escape(event.kind)}</td>'
        yield f'<td class="t">{escape(name_event_source(event))}</td>'
        yield f'<td class="w">{escape(describe_event_reason(event))}</td>'
        yield f"{f'<td>{render_pauses(event)}</td>' if has_steps else ''}</tr>"
    yield "</tbody></table></div>"
    if len(run.events) > MOST_ROWS:
        yield f'<p class="soft">{len(run.events) - MOST_ROWS:,} more are in events.jsonl.</p>'


def describe_event_reason(event: EventLine) -> str:
    return "; ".join(filter(None, (event.why, describe_event_details(event))))


def render_pauses(event: EventLine) -> str:
    each = []
    for worker, ms in sorted(event.pause_ms.items()):
        steps = event.pause_steps.get(worker)
        usual = "" if steps is None else f' <span class="soft">{steps:.2f} steps</span>'
        each.append(f'<span class="each">{worker}: {ms:.0f} ms{usual}</span>')
    return "".join(each)


def render_evaluation_table(run: Recorded) -> Iterable[str]:
    evaluations = [event for event in run.events if event.kind == "evaluation"][:MOST_ROWS]
    if not evaluations:
        return
    means = [read_evaluation_means(event) for event in evaluations]
    names = list(dict.fromkeys(name for found in means for name in found))
    head = "".join(f'<th class="n">{escape(name)}</th>' for name in names)
    yield '<h2>Evaluations</h2><div class="card scroll" tabindex="0"><table><thead><tr>'
    yield '<th class="n">step</th>'
    yield f'<th class="n">samples</th>{head}</tr></thead><tbody>'
    for event, found in zip(evaluations, means, strict=True):
        cells = "".join(
            f'<td class="n">{escape(format_event_value(found[name])) if name in found else ""}</td>'
            for name in names
        )
        step, samples = find_step(event, run.ledger), "" if event.samples is None else f"{event.samples:,}"
        yield f'<tr><td class="n">{step:,}</td><td class="n">{samples}</td>{cells}</tr>'
    yield "</tbody></table></div>"


PHASE_WORDS = {
    "deal": "fetching samples",
    "compute": "forward and backward",
    "reduce": "gradients to their owners, and votes",
    "apply": "optimizer, and new parameters",
    "other": "between the phases",
}


def render_phase_bar(facts: Facts) -> Iterable[str]:
    if not facts.phases:
        return
    colours = dict(zip((name for name in facts.phases if name != "other"), range(5), strict=False))
    style = {name: f"p{colours[name]}" if name in colours else "other" for name in facts.phases}
    yield '<h2>Time of the steps by phase</h2><div class="card"><div class="bar">'
    for name, share in facts.phases.items():
        yield f'<i class="{style[name]}" style="width:{100 * share:.2f}%" title="{escape(name)}"></i>'
    yield '</div><ul class="phases">'
    for name, share in facts.phases.items():
        description = PHASE_WORDS.get(name, "")
        yield (
            f'<li><i class="{style[name]}"></i>{escape(name)}<span class="soft">{description}</span>'
            f"<b>{100 * share:.1f} %</b></li>"
        )
    yield "</ul></div>"


def render_proof(verdict: Verdict | None) -> Iterable[str]:
    if verdict is None:
        return
    yield '<h2>Samples of each epoch</h2><div class="card scroll" tabindex="0"><table><thead><tr>'
    yield '<th class="n">epoch</th>'
    yield '<th class="n">trained once</th><th class="n">repeated</th><th class="n">skipped</th><th></th>'
    yield "</tr></thead><tbody>"
    for epoch in verdict.epochs:
        state = "complete" if epoch.finished else "unfinished"
        cells = "".join(f'<td class="n">{n:,}</td>' for n in (epoch.once, epoch.repeated, epoch.never))
        yield f'<tr><td class="n">{epoch.epoch}</td>{cells}<td class="soft">{state}</td></tr>'
    yield "</tbody></table></div>"
    if verdict.ok:
        yield '<p class="good">Verified: no step is missing, no sample was lost or repeated.</p>'
    if verdict.agreed:
        yield f'<p class="good">Spot checks: {describe_agreement(verdict.agreed)}.</p>'
    for problem in verdict.problems[:20]:
        where = "" if problem.step is None else f"step {problem.step}: "
        yield f'<p class="bad">{escape(where + problem.text)}</p>'


def render_choices(run: Recorded) -> Iterable[str]:
    spec, pinned = run.record.spec, run.record.pinned
    rows: list[tuple[str, str]] = [("script", " ".join(spec.program))]
    most = "any number" if spec.max_workers == NO_LIMIT else spec.max_workers
    rows.append(("requested workers", f"{spec.min_workers} to {most}, {spec.start} at the start"))
    if spec.contract is not None:
        rows += [
            ("processes per worker", str(spec.contract.processes)),
            ("time to save before a stop", format_duration(spec.contract.grace_s)),
            ("restarts after failures", str(spec.contract.max_restarts)),
            ("threads per process", str(spec.threads)),
        ]
    if pinned:
        rows += [
            ("virtual ranks", f"{pinned.virtual_ranks:,} with {pinned.samples_per_rank:,} samples each"),
            ("global batch", f"{pinned.global_batch:,} samples"),
            ("dataset", f"{pinned.dataset_length:,} samples" if pinned.dataset_length else "a stream"),
            ("parameters", f"{pinned.parameters:,} in {pinned.blocks:,} blocks"),
            ("optimizer", pinned.optimizer),
            ("convergence", pinned.convergence),
            ("numerics", pinned.numerics),
            ("copies of the optimizer state", format_copies(pinned.copies)),
            ("seed", str(pinned.seed)),
            ("threads per worker", str(pinned.threads)),
            ("script digest", pinned.script_digest),
            ("layout digest", pinned.layout_digest),
            *sorted(pinned.versions.items()),
        ]
    entries = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    title = "Pinned choices" if spec.contract is None else "Choices"
    yield f'<h2>{title}</h2><dl class="card">{entries}</dl>'


def render_footer(run: Recorded) -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    name = escape(run.record.spec.name)
    started = f"<footer>Started {escape(run.record.created)}. Drawn {now} from"
    again = f"<code>elastane report {name}</code> draws it again"
    if run.record.spec.contract is not None:
        return f"{started} events.jsonl; {again}.</footer>"
    return (
        f"{started} ledger.jsonl and events.jsonl; {again}, "
        f"<code>elastane verify {name}</code> verifies the run.</footer>"
    )
