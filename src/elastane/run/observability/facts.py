"""The most important numbers of a run."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from elastane.run.nouns.records import OUTCOMES, PRINTED, EventLine, LedgerLine
from elastane.run.observability.attempts import RESUMED, Restored, compute_attempt_costs
from elastane.run.observability.run_files import Recorded

NO_CHANGES = frozenset(
    {
        "evaluation",
        "message",
        PRINTED,
        "warning",
        "digest",
        "trackers.requested",
        "checkpoint.saved",
        "checkpoint.restored",
    }
)
"""Events of normal progress: checkpoints, and the script's own; ``message`` is a line of ``run.print``,
``printed`` one of ``print``, ``digest`` that of the last step."""

LONGEST_MS = 1e15
"""A longer step, of more than thirty thousand years, is an error in the ledger."""
PHASES = ("deal", "compute", "reduce", "apply")


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The most important numbers of a run.

    Args:
        outcome: ``running``, ``finished``, ``stopped``, ``failed``, or ``interrupted``: its processes ended
            without recording why.
        why: the reason in the last event of the run.
        planned_steps: planned steps of this run; None while unknown.
        loss: of the last step, None if it was not finite, or before the first step.
        workers: fewest and most in one step, None without steps.
        changes: events other than evaluations, messages and checkpoints.
        pause_ms: the longest pause of any healthy worker; None if no generation followed another.
        pause_steps: the same pause in usual steps.
        pause_step: the step of that pause.
        usual_step_ms: median time from entering a step to having applied it.
        wall_s: time from the first record to the last, including the time between attempts.
        checkpoints: number of checkpoints written.
        resumes: how often the run continued from one.
        lost_steps: steps that were made again after resumes.
        restored: the restore of the newest resume; None without one.
        digest: SHA-256 of the parameters at the newest digest, and its step.
        phases: share of each phase in the step time; the shares sum to 1, and ``other`` is the rest.
        origin: the state with which the run began: run, step and digest; empty: it began from nothing.
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
    origin: str = ""


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
        planned_steps=(
            max(0, run.record.pinned.steps - run.record.began_at.step) if run.record.pinned else None
        ),
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
        digest=find_newest_digest(ledger, run.events),
        phases=compute_phase_shares(ledger),
        origin=describe_origin(run),
    )


def describe_origin(run: Recorded) -> str:
    """Return the run and the step of the state with which a run began, and the digest of its parameters."""
    origin = run.record.origin
    if origin is None:
        return ""
    digests = (event.detail.get("parameters_sha256") for event in run.events if is_origin_digest(event, run))
    digest = next(digests, "") or origin.parameters_sha256
    return f"{origin}" + (f", parameters {digest}" if digest else "")


def is_origin_digest(event: EventLine, run: Recorded) -> bool:
    """Return whether an event has the digest of the state from which the run began."""
    return event.kind == "digest" and run.record.origin is not None and event.step == run.record.origin.step


def find_outcome(events: Sequence[EventLine], *, live: bool) -> tuple[str, str]:
    """Return the outcome of the run and its reason; see `Facts.outcome`."""
    event = find_outcome_event(events)
    if event is not None:
        return event.kind.removeprefix("run."), event.why
    if live:
        return "running", ""
    return "interrupted", "its processes ended without recording a reason"


def find_outcome_event(events: Sequence[EventLine]) -> EventLine | None:
    """Return the event that ended the current attempt of the run; None: it goes on."""
    for event in reversed(events):
        if event.kind == RESUMED:
            return None  # earlier events belong to earlier attempts
        if event.kind in OUTCOMES:
            return event
    return None


def find_finish(events: Iterable[EventLine]) -> str:
    """Return why the run has finished; empty: it has not."""
    return next((event.why for event in events if event.kind == "run.finished"), "")


def has_finished(events: Iterable[EventLine]) -> bool:
    """Return whether any attempt of the run has reached its last step; then no other attempt follows."""
    return any(event.kind == "run.finished" for event in events)


def find_longest_pause(events: Sequence[EventLine]) -> tuple[float | None, float | None, int | None]:
    """Return the longest pause of any healthy worker, in ms and in usual steps, and its step."""
    pauses = [(ms, worker, event) for event in events for worker, ms in event.pause_ms.items()]
    if not pauses:
        return None, None, None
    ms, worker, event = max(pauses, key=lambda pause: pause[0])
    return ms, event.pause_steps.get(worker), event.step


def find_newest_digest(ledger: Sequence[LedgerLine], events: Sequence[EventLine]) -> tuple[str, int] | None:
    """Return the newest digest of the parameters, and its step; None: no step has one.

    That of a run which its script has ended is an event: the ledger line of its last step came before.
    """
    found = [(line.digest.parameters, line.step) for line in reversed(ledger) if line.digest][:1]
    found += [
        (str(event.detail["parameters_sha256"]), event.step)
        for event in events
        if event.kind == "digest" and ledger and event.step == ledger[-1].step
    ]
    return max(found, key=lambda digest: digest[1], default=None)


def read_step_ms(line: LedgerLine) -> float:
    """Return the time of a step; 0 if the ledger has no possible value."""
    step_ms = 1000 * line.seconds.get("step", 0.0)
    return step_ms if 0 <= step_ms <= LONGEST_MS else 0.0


def compute_median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def compute_phase_shares(ledger: Sequence[LedgerLine]) -> dict[str, float]:
    """Return the share of each phase in the whole step time.

    The time of a phase is that of the slowest worker, so all phases together may exceed the step; then they
    are scaled to it.
    """
    sums = Counter[str]()
    for line in ledger:
        sums.update({phase: s for phase, s in line.seconds.items() if phase != "step" and math.isfinite(s)})
    measured = sum(sums.values())
    whole = max(sum(line.seconds.get("step", 0.0) for line in ledger), measured)
    if whole <= 0:
        return {}
    order = [*PHASES, *sorted(sums.keys() - set(PHASES))]
    shares = {phase: sums[phase] / whole for phase in order if sums[phase] > 0}
    return shares | ({"other": 1 - measured / whole} if whole > measured else {})
