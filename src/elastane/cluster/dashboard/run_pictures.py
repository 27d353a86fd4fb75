"""The drawings of a run for its page: the chart of its report, its workers, events and checkpoints."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from elastane.cluster.dashboard.worker_rows import list_shares
from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.observability.chart import MARKS, build_chart, draw_glyph
from elastane.run.observability.facts import collect_facts, compute_phase_shares
from elastane.run.observability.metrics import compute_metrics
from elastane.run.observability.report import (
    PHASE_WORDS,
    describe_event_reason,
    render_curves,
    render_evaluation_table,
    render_script_json,
    render_steps_card,
)
from elastane.run.observability.report_sections import render_attempts_table, render_checkpoint_table
from elastane.run.observability.report_worlds import render_worlds_card
from elastane.run.observability.run_events import RUN_EVENTS
from elastane.run.observability.run_files import Recorded
from elastane.run.observability.series import find_step

SHOWN_EVENTS = 200
RECENT_STEPS = 20


class RunPictures:
    """The drawings of a run. They are costly, so a run that goes on is drawn again only after a while."""

    def __init__(self) -> None:
        self._drawn: tuple[int, int] | None = None
        self._facts: dict[str, Any] = {}
        self._again_s = self._changed_s = 0.0

    def draw(self, run: Recorded) -> dict[str, Any]:
        """Return the facts about a run for templates."""
        state = (len(run.events), run.ledger[-1].step if run.ledger else 0)
        began_s = time.monotonic()
        again_s = self._again_s if self._drawn and state[0] == self._drawn[0] else self._changed_s
        if self._drawn is None or (state != self._drawn and began_s >= again_s):
            self._facts = draw_run(run)
            took_s = time.monotonic() - began_s
            # At most a twentieth of a core goes into the steps of one run, and a fifth into its changes.
            ended_s, self._drawn = time.monotonic(), state
            self._again_s, self._changed_s = ended_s + 19 * took_s, ended_s + 4 * took_s
        return self._facts


def draw_run(run: Recorded) -> dict[str, Any]:
    """Return the chart, the workers and the tables of a run for templates."""
    pinned = run.record.pinned
    ranks = pinned.virtual_ranks if pinned else 1
    shown = [event for event in run.events if event.kind in RUN_EVENTS and event.kind != "checkpoint.saved"]
    began_s = run.events[0].time if run.events else 0.0
    return {
        "run_facts": collect_facts(run),
        "metrics": compute_metrics(run),
        "chart": _draw_chart(run, ranks),
        "curves": _join(render_curves(run)),
        "tables": _join(
            (*render_evaluation_table(run), *render_attempts_table(run), *render_checkpoint_table(run))
        ),
        "phases": [
            (name, share, PHASE_WORDS.get(name, ""))
            for name, share in compute_phase_shares(run.ledger[-RECENT_STEPS:]).items()
        ],
        "worker_shares": list_shares(run.ledger),
        "virtual_ranks": ranks,
        "run_events": [
            _describe_event(event, run.ledger, began_s) for event in reversed(shown[-SHOWN_EVENTS:])
        ],
    }


def _draw_chart(run: Recorded, virtual_ranks: int) -> Markup:
    """Return the chart of the report of the run, with the data for the page's script."""
    if run.record.spec.contract is not None:
        return _join(render_worlds_card(run.events))
    chart = build_chart(run.ledger, run.events, virtual_ranks) if run.ledger else None
    hover = render_script_json(chart.hover) if chart else "null"
    data = f'<script type="application/json" id="hover">{hover}</script>'
    return _join((*render_steps_card(chart), data))


def _join(markup: Iterable[str]) -> Markup:
    """Return markup of a report, in which every text is escaped."""
    return Markup("\n".join(markup))  # noqa: S704 - the report escapes every text


def _describe_event(event: EventLine, ledger: Sequence[LedgerLine], began_s: float) -> dict[str, Any]:
    kind = RUN_EVENTS[event.kind]
    return {
        "glyph": Markup(draw_glyph(MARKS.get(event.kind))),  # noqa: S704 - constants of ours
        "time_s": event.time,
        "after_s": event.time - began_s,
        "step": find_step(event, ledger),
        "kind": kind.label or event.kind,
        "process": event.who,
        "reason": describe_event_reason(event),
        "pauses": sorted(event.pause_ms.items()),
    }
