"""What one run amounts to, in a handful of numbers."""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from elastane.api.records import OUTCOMES, EventLine, LedgerLine
from elastane.observability.attempts import RESUMED, Restored, compute_attempt_costs
from elastane.observability.run_files import Recorded

NO_CHANGES = frozenset(
    {"evaluation", "message", "warning", "digest", "checkpoint.saved", "checkpoint.restored"}
)
"""What goes on as it should: checkpoints, and the script's own words; `message` is a line of ``run.print``,
`digest` that of its end."""

LONGEST_MS = 1e15
"""A longer step is an error in the ledger: it would have lasted thirty thousand years."""
PHASES = ("deal", "compute", "reduce", "apply")


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers a run is remembered by.

    Args:
        outcome: ``running``, ``finished``, ``stopped``, ``failed``, or ``interrupted``: its processes are
            gone and left no word why.
        why: what the last event of the run said.
        steps: committed.
        planned_steps: it was to last, None while unknown.
        loss: of the last step, None if it was not finite or there is none.
        samples: trained on.
        workers: fewest and most in one step, None without steps.
        changes: events other than evaluations, messages and checkpoints.
        pause_ms: the longest of any healthy worker, None if no generation followed another.
        pause_steps: the same pause in usual steps.
        pause_step: where it was.
        usual_step_ms: median from entering a step to having applied it.
        wall_s: from the first thing written down to the last, the time between two attempts included.
        checkpoints: written.
        resumes: how often the run went on from one.
        lost_steps: made again after these.
        restored: what the newest of these has read; None without one.
        digest: SHA-256 of the newest digested parameters, and the step it belongs to.
        phases: share of the step time each phase took, summing to 1; ``other`` is what no phase claims.
    """

    outcome: str
    why: str
    steps: int
    planned_steps: int | None
    loss: float | None
    samples: int
    workers: tuple[int, int] | None
    changes: int
    pause_ms: float | None
    pause_steps: float | None
    pause_step: int | None
    usual_step_ms: float | None
    wall_s: float
    checkpoints: int
    resumes: int
    lost_steps: int
    restored: Restored | None
    digest: tuple[str, int] | None
    phases: dict[str, float]


def collect_facts(run: Recorded) -> Facts:
    outcome, why = find_outcome(run.events, live=run.live)
    ledger = run.ledger
    sizes = [len(line.workers) for line in ledger]
    pause_ms, pause_steps, pause_step = find_longest_pause(run.events)
    times = [line.time for line in ledger] + [event.time for event in run.events]
    attempts = compute_attempt_costs(run.events, ledger)
    return Facts(
        outcome=outcome,
        why=why,
        steps=len(ledger),
        planned_steps=run.record.pinned.steps if run.record.pinned else None,
        loss=ledger[-1].loss if ledger else None,
        samples=sum(line.samples.count for line in ledger),
        workers=(min(sizes), max(sizes)) if sizes else None,
        changes=sum(event.kind not in NO_CHANGES for event in run.events),
        pause_ms=pause_ms,
        pause_steps=pause_steps,
        pause_step=pause_step,
        usual_step_ms=compute_median(step_ms) if (step_ms := [*map(read_step_ms, ledger)]) else None,
        wall_s=max(times) - min(times) if times else 0.0,
        checkpoints=sum(event.kind == "checkpoint.saved" for event in run.events),
        resumes=len(attempts),
        lost_steps=sum(attempt.lost_steps for attempt in attempts),
        restored=attempts[-1].restored if attempts else None,
        digest=find_newest_digest(ledger),
        phases=compute_phase_shares(ledger),
    )


def find_outcome(events: Sequence[EventLine], *, live: bool) -> tuple[str, str]:
    """How the run ended and why it says so; see `Facts.outcome`."""
    event = find_outcome_event(events)
    if event is not None:
        return event.kind.removeprefix("run."), event.why
    if live:
        return "running", ""
    return "interrupted", "its processes are gone and left no word why"


def find_outcome_event(events: Sequence[EventLine]) -> EventLine | None:
    """Return the event that says how the present attempt of the run ended; None: none does."""
    for event in reversed(events):
        if event.kind == RESUMED:
            return None  # what comes before it is what an earlier attempt came to
        if event.kind in OUTCOMES:
            return event
    return None


def find_longest_pause(events: Sequence[EventLine]) -> tuple[float | None, float | None, int | None]:
    """The longest pause of any healthy worker: in ms, in usual steps, and at which step."""
    pauses = [(ms, worker, event) for event in events for worker, ms in event.pause_ms.items()]
    if not pauses:
        return None, None, None
    ms, worker, event = max(pauses, key=lambda pause: pause[0])
    return ms, event.pause_steps.get(worker), event.step


def find_newest_digest(ledger: Sequence[LedgerLine]) -> tuple[str, int] | None:
    return next(((line.digest.parameters, line.step) for line in reversed(ledger) if line.digest), None)


def read_step_ms(line: LedgerLine) -> float:
    """Time of a step; 0 where the ledger has none that can be one."""
    step_ms = 1000 * line.seconds.get("step", 0.0)
    return step_ms if 0 <= step_ms <= LONGEST_MS else 0.0


def compute_median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def compute_phase_shares(ledger: Sequence[LedgerLine]) -> dict[str, float]:
    """Share of the whole step time per phase.

    Phases are the longest over the workers, so together they may exceed the step; then they are scaled to it.
    """
    sums = Counter[str]()
    for line in ledger:
        sums.update({phase: s for phase, s in line.seconds.items() if phase != "step" and math.isfinite(s)})
    claimed = sum(sums.values())
    whole = max(sum(line.seconds.get("step", 0.0) for line in ledger), claimed)
    if whole <= 0:
        return {}
    order = [*PHASES, *sorted(sums.keys() - set(PHASES))]
    shares = {phase: sums[phase] / whole for phase in order if sums[phase] > 0}
    return shares | ({"other": 1 - claimed / whole} if whole > claimed else {})
