"""The workers of a run for its page, by machine: what each does now, its share of a step, and stragglers."""

from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec
from markupsafe import Markup

from elastane.cluster.nouns.job_workers import JobWorker, find_stragglers
from elastane.run.nouns.control import Activity
from elastane.run.nouns.membership import FIRST_NODE_WORD
from elastane.run.nouns.records import LedgerLine

ACTIVITY_WORDS: Mapping[Activity, str] = {
    "compute": "computes",
    "load": "loads samples",
    "wait": "exchanges sums and waits",
    "script": "runs the script between steps",
    "start": "starts",
    "end": "has finished",
}
BAR_WIDTH, BAR_HEIGHT = 120, 10
STUCK_S = 10.0


class WorkerShare(msgspec.Struct, frozen=True):
    """A worker in the newest step.

    Args:
        ranks: the number of its virtual ranks.
        since_step: it has taken part without a break since this step.
    """

    ranks: int
    since_step: int


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker on the page.

    Args:
        state: ``member`` if only the records of the run are known.
        share: of the virtual ranks of a step, 0 to 1.
        since_step: None: it has not taken part in a step that is known.
        bar: what it did in the last two seconds, drawn.
        now: the same in words; empty: unknown.
        slower: how many times the usual time it needs for a virtual rank; None: not a straggler.
    """

    worker: int
    state: str = "member"
    ranks: int = 0
    share: float = 0.0
    since_step: int | None = None
    bar: Markup = Markup("")
    now: str = ""
    silent_s: float = 0.0
    saving: bool = False
    compute_s: float = 0.0
    slower: float | None = None


def list_shares(ledger: Sequence[LedgerLine]) -> dict[int, WorkerShare]:
    """Return the workers of the newest step."""
    if not ledger:
        return {}
    since: dict[int, int] = {}
    for line in reversed(ledger):
        here = [worker for worker in ledger[-1].workers if since.get(worker, line.step + 1) == line.step + 1]
        for worker in here:
            if worker in line.workers:
                since[worker] = line.step
        if not here:
            break
    return {
        worker: WorkerShare(sum(stop - start for start, stop in spans), since.get(worker, ledger[-1].step))
        for worker, spans in sorted(ledger[-1].workers.items())
    }


def group_workers(
    live: Sequence[JobWorker], shares: Mapping[int, WorkerShare], virtual_ranks: int
) -> tuple[tuple[str, tuple[WorkerRow, ...]], ...]:
    """Return each machine with its workers; without ``live`` ones those of the last recorded step."""
    if not live:
        rows = [_describe(JobWorker(worker=worker), shares, virtual_ranks, {}) for worker in shares]
        return (("", tuple(rows)),) if rows else ()
    slower = find_stragglers(live)
    return tuple(
        (node or FIRST_NODE_WORD, tuple(_describe(row, shares, virtual_ranks, slower) for row in rows))
        for node, rows in groupby(live, lambda row: row.node)
    )


def _describe(
    row: JobWorker, shares: Mapping[int, WorkerShare], virtual_ranks: int, slower: Mapping[int, float]
) -> WorkerRow:
    known = shares.get(row.worker)
    ranks = row.virtual_ranks or (known.ranks if known else 0)
    return WorkerRow(
        worker=row.worker,
        state=row.state or "member",
        ranks=ranks,
        share=ranks / max(1, virtual_ranks),
        since_step=known.since_step if known else None,
        bar=draw_activity(row.activity),
        now=", ".join(f"{ACTIVITY_WORDS[name]} {share} %" for name, share in row.activity.items() if share),
        silent_s=row.silent_s if row.silent_s >= STUCK_S else 0.0,
        saving=row.saving,
        compute_s=row.compute_s,
        slower=slower.get(row.worker),
    )


def draw_activity(activity: Mapping[Activity, int]) -> Markup:
    """Return a bar that shows what a worker did, always in the same order."""
    if not activity:
        return Markup("")
    parts, begin = [], 0.0
    whole = max(1, sum(activity.values()))
    for name in ACTIVITY_WORDS:
        width = BAR_WIDTH * activity.get(name, 0) / whole
        if width:
            parts.append(
                Markup('<rect class="{}" x="{:.1f}" width="{:.1f}" height="{}"/>').format(
                    name, begin, width, BAR_HEIGHT
                )
            )
        begin += width
    return Markup(
        '<svg class="activity" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(BAR_WIDTH, BAR_HEIGHT, Markup("").join(parts))
