"""The tiles, tables and texts of a report."""

from collections.abc import Iterable
from html import escape

from elastane.common.durations import format_duration
from elastane.common.safe_text import escape_text
from elastane.common.untrusted_data import Malformed
from elastane.run.observability.attempts import AttemptCost, compute_attempt_costs
from elastane.run.observability.facts import Facts
from elastane.run.observability.metrics import Checkpoint, collect_checkpoints
from elastane.run.observability.model_files import is_plain_name
from elastane.run.observability.quantities import format_ms, format_size
from elastane.run.observability.run_files import Recorded

MOST_ROWS = 50
SUFFIX = ".txt"
MOST_TEXTS = 20
MOST_CHARACTERS = 4000
LARGEST_BYTES = 1 << 20


def build_checkpoint_tile(facts: Facts) -> tuple[str, str, str] | None:
    """Return the tile about checkpoints; None if the run has none."""
    if not facts.checkpoints and not facts.resumes:
        return None
    again = f"{facts.lost_steps:,} step{'' if facts.lost_steps == 1 else 's'} made again"
    resumed = f"{facts.resumes} resume{'' if facts.resumes == 1 else 's'}, {again}"
    return "checkpoints", f"{facts.checkpoints:,}", resumed if facts.resumes else "none was needed"


def render_attempts_table(run: Recorded) -> Iterable[str]:
    attempts = compute_attempt_costs(run.events, run.ledger)
    if not attempts:
        return
    titles = {
        "attempt": "n",
        "continued from": "",
        "reason": "",
        "steps made again": "n",
        "downtime": "n",
        "restored": "n",
        "time to first new step": "n",
    }
    yield "<h2>Attempts</h2>"
    yield from render_table(
        titles, (render_attempt_cells(number, attempt) for number, attempt in enumerate(attempts, start=2))
    )


def render_attempt_cells(number: int, attempt: AttemptCost) -> Iterable[tuple[str, str]]:
    yield "n", str(number)
    yield "k", attempt.checkpoint
    yield "w", attempt.why
    yield "n", f"{attempt.lost_steps:,}"
    yield "n", "" if attempt.away_s is None else format_duration(attempt.away_s)
    restored = attempt.restored
    yield "n", "" if restored is None else f"{format_size(restored.bytes)} in {restored.seconds:.2f} s"
    yield "n", "" if attempt.back_s is None else format_duration(attempt.back_s)


def render_checkpoint_table(run: Recorded) -> Iterable[str]:
    """Yield a table of the newest checkpoints that were written, some of which may be deleted now."""
    written = [checkpoint for checkpoint in collect_checkpoints(run.events) if not checkpoint.used]
    if not written:
        return
    used = {attempt.checkpoint for attempt in compute_attempt_costs(run.events, run.ledger)}
    titles = {"step": "n", "name": "", "size": "n", "copied in": "n", "written in": "n", "": ""}
    yield "<h2>Checkpoints</h2>"
    yield from render_table(
        titles,
        (render_checkpoint_cells(checkpoint, checkpoint.name in used) for checkpoint in written[-MOST_ROWS:]),
    )
    more = f"The newest {MOST_ROWS} of {len(written):,}. " if len(written) > MOST_ROWS else ""
    yield f'<p class="soft">{more}A step may wait for the copy, but never for the writing.</p>'


def render_checkpoint_cells(checkpoint: Checkpoint, used: bool) -> Iterable[tuple[str, str]]:
    yield "n", f"{checkpoint.step or 0:,}"
    yield "k", checkpoint.name
    yield "n", format_size(checkpoint.bytes)
    for seconds in (checkpoint.copy_s, checkpoint.write_s):
        yield "n", "" if seconds is None else format_ms(1000 * seconds)
    yield "soft", "the run continued from it" if used else ""


def render_table(titles: dict[str, str], rows: Iterable[Iterable[tuple[str, str]]]) -> Iterable[str]:
    """Yield a table from titles and cells with their classes; every text is escaped."""
    head = "".join(f'<th class="{kind}">{escape(title)}</th>' for title, kind in titles.items())
    yield f'<div class="card scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>'
    for row in rows:
        yield "<tr>" + "".join(f'<td class="{kind}">{escape(text)}</td>' for kind, text in row) + "</tr>"
    yield "</tbody></table></div>"


# The text files that a script wrote through ``run.artifact``, such as samples of a model, in the report.


def render_text_artifacts(run: Recorded) -> Iterable[str]:
    """Yield the newest text artifacts, the newest first and open; the others open on a click."""
    texts = list(find_text_artifacts(run))
    if not texts:
        return
    yield "<h2>Text artifacts</h2>"
    for place, (step, name, text) in enumerate(texts):
        state = " open" if place == 0 else ""
        yield f'<details class="card"{state}><summary>step {step:,}: {escape(name)}</summary>'
        yield f"<pre>{escape(escape_text(text, MOST_CHARACTERS))}</pre></details>"


def find_text_artifacts(run: Recorded) -> Iterable[tuple[int, str, str]]:
    """Yield the step, name and text of the newest text artifacts; a file that cannot be read is left out."""
    found = 0
    for line in reversed(run.ledger):
        for name in line.artifacts:
            if found == MOST_TEXTS:
                return
            if not name.endswith(SUFFIX) or not is_plain_name(name):
                continue
            path = run.run_dir.artifacts / f"step-{line.step}" / name
            try:
                raw = run.run_dir.files.read(path, LARGEST_BYTES)
            except (OSError, Malformed):
                continue
            found += 1
            yield line.step, name, raw.decode(errors="replace")
