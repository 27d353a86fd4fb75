"""Verification that the steps that must have a digest have one."""

from collections.abc import Iterable

import msgspec

from elastane.run.nouns.records import AGENT, ENDS_WITH_MODEL, SCRIPT, Digest, EventLine
from elastane.run.observability.attempts import RESUMED
from elastane.run.observability.coverage import LedgerProblem
from elastane.run.observability.facts import find_outcome_event
from elastane.run.observability.run_files import Recorded

WHOLE = ("parameters_sha256", "optimizer_sha256")
"""The names of the digests of the whole state in a ``digest`` event."""


def find_last_due_step(run: Recorded) -> int | None:
    """Return the last step if it must have a digest independent of its number; None: it need not have one.

    If the script ended the run, its last line was reported before that was known, so an event has the digest.
    An attempt that made no step has no last step.
    """
    event = find_outcome_event(run.events)
    if event is None or event.kind not in ENDS_WITH_MODEL or event.who in (SCRIPT, AGENT) or not run.ledger:
        return None
    began = run.record.resumed.step if run.record.resumed is not None else 0
    last = run.ledger[-1].step
    return last if last > began else None


def is_digest_expected(run: Recorded, step: int) -> bool:
    """Return whether a step's line must have a digest: every ``digest_every`` steps, and the last one."""
    every = run.record.spec.digest_every
    return (every > 0 and step % every == 0) or step == find_last_due_step(run)


def is_end_of_attempt(run: Recorded, step: int) -> bool:
    """Return whether an attempt of the run ended with a step, or the next attempt began after it."""
    ends = {event.step for event in run.events if event.kind in (*ENDS_WITH_MODEL, RESUMED)}
    return step in ends or (bool(run.ledger) and step == run.ledger[-1].step)


def find_digest_event(run: Recorded) -> EventLine | None:
    """Return the event with the digest of the last step, if the script has ended the run."""
    last = run.ledger[-1].step if run.ledger else None
    return next((e for e in reversed(run.events) if e.kind == "digest" and e.step == last), None)


def add_last_digest(run: Recorded) -> Recorded:
    """Copy the digest of a ``digest`` event into the last line, without blocks."""
    event = find_digest_event(run)
    if event is None or run.ledger[-1].digest is not None:
        return run
    parameters, optimizer = (str(event.detail.get(name, "")) for name in WHOLE)
    last = msgspec.structs.replace(run.ledger[-1], digest=Digest(parameters, optimizer, (), ()))
    return msgspec.structs.replace(run, ledger=(*run.ledger[:-1], last))


def find_digest_problems(run: Recorded) -> Iterable[LedgerProblem]:
    """Find the steps with a missing digest, or with a digest that differs from their event's."""
    every, last = run.record.spec.digest_every, find_last_due_step(run)
    for line in run.ledger:
        if line.digest is not None:
            continue
        if every > 0 and line.step % every == 0:
            yield LedgerProblem("digest", f"the digest is missing; one is due every {every} steps", line.step)
        elif line.step == last:
            yield LedgerProblem("digest", "the digest is missing; one is due at the last step", line.step)
    yield from find_event_problems(run)


def find_event_problems(run: Recorded) -> Iterable[LedgerProblem]:
    """Find a missing event for the digest of the last step, or one that contradicts the ledger."""
    if not run.ledger:
        return
    event, outcome, last = find_digest_event(run), find_outcome_event(run.events), run.ledger[-1]
    if event is not None and last.digest is not None:
        if tuple(event.detail.get(name) for name in WHOLE) != (last.digest.parameters, last.digest.optimizer):
            yield LedgerProblem(
                "digest", "the digest differs from that of the event about the same step", last.step
            )
    elif event is None and last.digest is None and outcome is not None and outcome.who == SCRIPT:
        text = "the digest is missing; the script ended the run after this step, so an event should have it"
        yield LedgerProblem("digest", text, last.step)
