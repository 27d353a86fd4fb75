"""The report, the metrics and the card of a run that is over."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from elastane.common.errors import ElastaneError
from elastane.run.attempts.verification import verify_samples
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.facts import Facts, collect_facts
from elastane.run.observability.finished import write_conclusion
from elastane.run.observability.report import write_report
from elastane.run.observability.run_files import Recorded, read_run

MOST_PROVED_SAMPLES = 2_000_000
"""Above this number of samples, verifying coverage would delay the end (about 5 us each)."""


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
