"""The report, the metrics and the card of a run that is over."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from elastane.common.errors import ElastaneError
from elastane.run.attempts.verification import verify_samples
from elastane.run.nouns.control import RunOver
from elastane.run.nouns.records import AGENT, OUTCOMES, EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.facts import Facts, collect_facts, find_outcome_event
from elastane.run.observability.finished import write_conclusion
from elastane.run.observability.line_files import append_line, remove_torn_line
from elastane.run.observability.report import write_report
from elastane.run.observability.run_files import Recorded, read_events, read_run

MOST_PROVED_SAMPLES = 2_000_000
"""Above this number of samples, verifying coverage would delay the end (about 5 us each)."""
KINDS: dict[int, str] = {code: kind for kind, code in OUTCOMES.items()}


class RunResults(msgspec.Struct, frozen=True):
    """The results of a run; a result is None if the run's files are damaged or the disk is full."""

    recorded: Recorded | None = None
    facts: Facts | None = None
    report: Path | None = None


def write_results(run_dir: RunDir, say: Callable[[str], None]) -> RunResults:
    """Write all results that can be written; ``say`` receives a line about each failure."""
    recorded = facts = report = None
    try:
        recorded = read_run(run_dir)
        facts = collect_facts(recorded)
        report = draw_report(recorded)
    except ElastaneError as error:
        say(f"no report: {error}")
        return RunResults()
    try:
        write_conclusion(recorded)
    except ElastaneError as error:
        say(f"no metrics and no card: {error}")
    return RunResults(recorded, facts, report)


def draw_report(run: Recorded) -> Path:
    """Write the report of a run, with the verification of its samples if that is quick.

    Raises:
        BadInput: it cannot be written.
    """
    samples = sum(line.samples.count for line in run.ledger)
    verdict = verify_samples(run) if run.record.pinned and samples <= MOST_PROVED_SAMPLES else None
    return write_report(run, verdict).report


# -- the last event of a run, for a coordinator that was killed before it could write it -----------------


def write_final_event(run_dir: RunDir, over: RunOver) -> None:
    """Cut off torn lines, and add the event that ends the run where it is missing.

    The caller holds the run's lock, and every other process of the run has ended. A second Ctrl-C may have
    killed the coordinator in the middle of a line.
    """
    remove_torn_line(run_dir.ledger)
    remove_torn_line(run_dir.events)
    if find_outcome_event(read_events(run_dir, torn_tail=False)) is not None:
        return
    event = EventLine(time=time.time(), kind=KINDS.get(over.code, "run.failed"), who=AGENT, why=over.why)
    append_line(run_dir.events, msgspec.json.encode(event))
