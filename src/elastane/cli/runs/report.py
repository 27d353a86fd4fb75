"""``elastane report``: write the report, metrics and card of a run again."""

from elastane.cli.command import AsJson, RunName, open_console, print_json
from elastane.run.machines.visits.run_finder import find_run
from elastane.run.observability.run_files import read_run


def report(run: RunName, as_json: AsJson = False) -> None:
    """Write report.html of RUN again, a single page without other files.

    If the run is over, write metrics.json and the model's CARD.md again too.
    """
    from elastane.run.attempts.results import draw_report
    from elastane.run.observability.finished import write_conclusion

    recorded = read_run(find_run(run))
    pages = [draw_report(recorded)]
    if not recorded.live:
        files = write_conclusion(recorded)
        pages += [page for page in (files.metrics, files.card) if page.exists()]
    console = open_console(as_json=as_json)
    for page in pages:
        console.print(str(page), markup=False)
    if as_json:
        print_json({page.stem.lower(): str(page) for page in pages})
