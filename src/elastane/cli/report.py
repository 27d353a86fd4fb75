"""``elastane report``: a run's page, metrics and card once more."""

from pathlib import Path

from elastane.cli.verb import AsJson, RunName, print_json, talk
from elastane.client.resolve import find_run
from elastane.observability.run_files import Recorded, read_run

MOST_PROVED_SAMPLES = 2_000_000
"""Above this many samples, proving coverage takes too long to do in passing (about 5 us each)."""


def report(run: RunName, as_json: AsJson = False) -> None:
    """Draw report.html of RUN again: one page, nothing else needed to read it.

    Of a run that is over, metrics.json and the model's CARD.md too.
    """
    from elastane.observability.finished import write_conclusion  # noqa: PLC0415 - only here

    recorded = read_run(find_run(run))
    pages = [drawn(recorded)]
    if not recorded.live:
        files = write_conclusion(recorded)
        pages += [page for page in (files.metrics, files.card) if page.exists()]
    console = talk(as_json=as_json)
    for page in pages:
        console.print(str(page), markup=False)
    if as_json:
        print_json({page.stem.lower(): str(page) for page in pages})


def drawn(run: Recorded) -> Path:
    """Write the page of a run, with the proof of its samples where that is quick."""
    from elastane.cli.verify import judged  # noqa: PLC0415 - only what is drawn is proved
    from elastane.observability.report import write_report  # noqa: PLC0415

    samples = sum(line.samples.count for line in run.ledger)
    verdict = judged(run) if run.record.pinned and samples <= MOST_PROVED_SAMPLES else None
    return write_report(run, verdict).report
