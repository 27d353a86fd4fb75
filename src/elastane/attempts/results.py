"""What is drawn up of a run that is over: report, metrics and card."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from elastane.api.errors import ElastaneError
from elastane.api.rundir import RunDir
from elastane.attempts.verification import verify_samples
from elastane.observability.facts import Facts, facts_of
from elastane.observability.finished import write_conclusion
from elastane.observability.report import write_report
from elastane.observability.run_files import Recorded, read_run

MOST_PROVED_SAMPLES = 2_000_000
"""Above this many samples, proving coverage takes too long to do in passing (about 5 us each)."""


class RunResults(msgspec.Struct, frozen=True):
    """What could be made of a run's files; None: they are damaged, or the disk is full."""

    recorded: Recorded | None = None
    facts: Facts | None = None
    report: Path | None = None


def write_results(run_dir: RunDir, say: Callable[[str], None]) -> RunResults:
    """Write what can be written; ``say`` takes a line about what cannot."""
    recorded = facts = report = None
    try:
        recorded = read_run(run_dir)
        facts = facts_of(recorded)
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
    """Write the page of a run, with the proof of its samples where that is quick.

    Raises:
        BadInput: it cannot be written.
    """
    samples = sum(line.samples.count for line in run.ledger)
    verdict = verify_samples(run) if run.record.pinned and samples <= MOST_PROVED_SAMPLES else None
    return write_report(run, verdict).report
