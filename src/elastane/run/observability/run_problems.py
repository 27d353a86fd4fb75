"""Contradictions between the ledger of a run and its other files, or within the ledger."""

from collections.abc import Iterable

from elastane.run.nouns.records import ENDS_WITH_MODEL, SCRIPT
from elastane.run.observability.coverage import LedgerProblem, find_stream_position_problems
from elastane.run.observability.digests import find_digest_problems
from elastane.run.observability.facts import find_outcome_event
from elastane.run.observability.run_files import Recorded


def find_run_problems(run: Recorded) -> tuple[LedgerProblem, ...]:
    """Find the problems that `elastane.run.observability.verify`, which reads only the ledger, cannot see."""
    pinned = run.record.pinned
    is_stream = pinned is not None and not pinned.dataset_length
    streams = find_stream_position_problems(run.ledger) if is_stream else ()
    return (*find_digest_problems(run), *streams, *find_end_problems(run))


def find_end_problems(run: Recorded) -> Iterable[LedgerProblem]:
    """Find a ledger that ends at another step than the last event records."""
    event, pinned = find_outcome_event(run.events), run.record.pinned
    if event is None or event.kind not in ENDS_WITH_MODEL or pinned is None:
        return
    finished = event.kind == "run.finished"
    last = run.ledger[-1].step if run.ledger else 0
    # The number of steps of other finished runs is pinned, and checked with the ledger.
    counted = finished and (pinned.steps > 0 or event.who == SCRIPT)
    if event.step is not None and event.step != last and not counted:
        how = "finished" if finished else "stopped"
        yield LedgerProblem(
            "steps", f"the run {how} after step {event.step}, but its ledger ends with step {last}"
        )
    if (
        finished
        and not pinned.steps
        and event.who != SCRIPT
        and run.ledger
        and not run.ledger[-1].samples.ended
    ):
        text = "the run finished with its stream, but the last step does not end an epoch"
        yield LedgerProblem("samples", text, last)
