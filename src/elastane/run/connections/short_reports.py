"""Reports without what has crossed the same connection before, and the whole reports again.

Each worker reports its newest generation, and the shares of each step. Both name all workers of the run, so
the reports of all workers together would grow with the square of their number. Both seldom change. So a
connection carries each of them once: the worker shortens its reports, and the coordinator completes them
before it decides.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from elastane.common.untrusted_data import Malformed
from elastane.run.nouns.control import StepReport, StepReports, WorkerReport
from elastane.run.nouns.membership import Generation, GenerationId
from elastane.run.nouns.records import Shares

MOST_GENERATIONS = 16
"""Workers that report are at most a few generations behind."""


def shorten_report(report: WorkerReport) -> WorkerReport:
    """Return a report with the id of its newest generation in place of the generation."""
    if report.newest is None:
        return report
    return replace(report, newest=None, newest_id=report.newest.id)


class ProposedGenerations:
    """The generations that have crossed the connections, which reports then only name.

    Workers report one generation in thousands of copies; all of them become one object.
    """

    def __init__(self) -> None:
        self._by_id: dict[GenerationId, Generation] = {}

    def add(self, generation: Generation) -> Generation:
        """Remember a generation, and return the equal one that is known already."""
        known = self._by_id.pop(generation.id, generation)
        # The last one is the one used last.
        self._by_id[generation.id] = known if known == generation else generation
        if len(self._by_id) > MOST_GENERATIONS:
            del self._by_id[next(iter(self._by_id))]
        return self._by_id[generation.id]

    def complete(self, report: WorkerReport) -> WorkerReport:
        """Return a report with its generation in place of the name.

        Raises:
            Malformed: no such generation is known. On its next connection the worker sends it again.
        """
        if report.newest is not None:
            return replace(report, newest=self.add(report.newest), newest_id=None)
        if report.newest_id is None:
            return report
        known = self._by_id.get(report.newest_id)
        if known is None:
            raise Malformed(f"generation {report.newest_id.number} is not known here")
        return replace(report, newest=self.add(known), newest_id=None)


def shorten_steps(reports: Iterable[StepReport], shares: Shares) -> tuple[StepReport, ...]:
    """Return reports of steps without the shares that the receiver knows from the line before.

    Args:
        reports: in the order of their steps.
        shares: those in the last line that was sent on the same connection; empty: none was.
    """
    short = []
    for report in reports:
        is_known = bool(shares) and report.line.workers == shares
        short.append(_drop_shares(report) if is_known else report)
        shares = report.line.workers
    return tuple(short)


def _drop_shares(report: StepReport) -> StepReport:
    return replace(report, line=replace(report.line, workers={}), shares_again=True)


def complete_steps(steps: StepReports, shares: Shares) -> StepReports:
    """Return reports of steps in which every line has its shares.

    Args:
        steps: as they arrived.
        shares: those in the line before; empty: there was none.

    Raises:
        Malformed: a line lacks its shares, and there was none before it.
    """
    whole = []
    for report in steps.reports:
        whole.append(_add_shares(report, shares) if report.shares_again else report)
        shares = whole[-1].line.workers
    return replace(steps, reports=tuple(whole))


def _add_shares(report: StepReport, shares: Shares) -> StepReport:
    if not shares:
        raise Malformed(f"step {report.line.step} has the shares of no earlier line")
    return replace(report, line=replace(report.line, workers=shares), shares_again=False)
