"""Which steps of a run must have a digest in the ledger, and which of them have none."""

from collections.abc import Iterable

from elastane.api.records import SCRIPT, EventLine
from elastane.observability.coverage import Problem
from elastane.observability.facts import outcome_event
from elastane.observability.lives import RESUMED
from elastane.observability.run_files import Recorded

ENDED = ("run.finished", "run.stopped")
AGENT = "agent"
"""Who writes down the end of a run whose coordinator was killed before it could."""


def due_last(run: Recorded) -> int | None:
    """Return the last step if it must have a digest whatever its number; None: it need not.

    The line of a step after which the script ended the run went out before anybody knew that it was the last;
    an event has its digest. A life that made no step has no last one.
    """
    event = outcome_event(run.events)
    if event is None or event.kind not in ENDED or event.who in (SCRIPT, AGENT) or not run.ledger:
        return None
    began = run.record.resumed.step if run.record.resumed is not None else 0
    last = run.ledger[-1].step
    return last if last > began else None


def is_due(run: Recorded, step: int) -> bool:
    """Whether the line of a step must have a digest: every ``digest_every`` steps, and the last one."""
    every = run.record.spec.digest_every
    return (every > 0 and step % every == 0) or step == due_last(run)


def is_end_of_a_life(run: Recorded, step: int) -> bool:
    """Whether a life of the run ended with a step, or the next one began after it."""
    ends = {event.step for event in run.events if event.kind in (*ENDED, RESUMED)}
    return step in ends or (bool(run.ledger) and step == run.ledger[-1].step)


def digest_problems(run: Recorded) -> Iterable[Problem]:
    """Find the steps whose digest is missing, or is not the one that an event has of the same step."""
    every, last = run.record.spec.digest_every, due_last(run)
    events = {event.step: event for event in run.events if event.kind == "digest"}
    for line in run.ledger:
        if line.digest is None:
            if every > 0 and line.step % every == 0:
                yield Problem("digest", f"the digest is missing; every {every} steps one is due", line.step)
            elif line.step == last:
                yield Problem("digest", "the digest is missing; the last step has one", line.step)
        elif (event := events.get(line.step)) is not None and differs(
            event, line.digest.parameters, line.digest.optimizer
        ):
            yield Problem("digest", "the digest is not that of the event about the same step", line.step)


def differs(event: EventLine, parameters: str, optimizer: str) -> bool:
    told = (event.detail.get("parameters_sha256"), event.detail.get("optimizer_sha256"))
    return told != (parameters, optimizer)
