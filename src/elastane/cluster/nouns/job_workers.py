"""What each worker of a job does now, as the API and the pages have it."""

from collections.abc import Iterable
from statistics import median

import msgspec

from elastane.common.bodies import AnswerBody
from elastane.common.bounds import Count, Duration, Percent
from elastane.common.safe_text import escape_line
from elastane.run.nouns.control import Activity, ProcessInfo

MOST_WORKERS_SHOWN = 1000
LONGEST_WORD = 100
STRAGGLER = 1.25
"""A straggler needs this many times the usual time for a virtual rank."""


class JobWorker(AnswerBody, frozen=True, kw_only=True):
    """A worker of a run, as its coordinator and its agent saw it last.

    Args:
        node: its machine; empty: the one on which the run began.
        state: ``starting``, ``ready``, ``member``, ``draining``, ``leaving``, ``finished``, ``unreachable``.
        virtual_ranks: how many it computes in a step; 0: unknown.
        activity: the shares in percent of what it did in the last two seconds; ``wait`` is the time in which
            it exchanged sums and votes with the other workers. Empty: unknown.
        silent_s: seconds since its last progress; 0: it has made some in the last two.
        compute_s: seconds for a virtual rank, the median of its last steps; 0: unknown.
        saving: it writes its part of a checkpoint, beside the steps.
        sites: of which it may read the data, in a run with data bound to sites.
    """

    worker: Count
    node: str = ""
    state: str = ""
    virtual_ranks: Count = 0
    activity: dict[Activity, Percent] = msgspec.field(default_factory=dict)
    silent_s: Duration = 0.0
    compute_s: Duration = 0.0
    saving: bool = False
    sites: tuple[str, ...] = ()


def list_job_workers(processes: Iterable[ProcessInfo]) -> tuple[JobWorker, ...]:
    """Return the workers among the processes of a run, by machine and number.

    The run is asked for them, so its texts are untrusted.
    """
    found = (
        JobWorker(
            worker=process.worker,
            node=escape_line(process.node, LONGEST_WORD),
            state=escape_line(process.state, LONGEST_WORD),
            virtual_ranks=process.virtual_ranks or 0,
            activity=process.activity,
            silent_s=process.silent_s,
            compute_s=process.compute_s,
            saving=process.saving,
            sites=tuple(escape_line(site, LONGEST_WORD) for site in process.sites),
        )
        for process in processes
        if process.role == "worker" and process.worker is not None
    )
    return tuple(sorted(found, key=lambda row: (row.node, row.worker)))[:MOST_WORKERS_SHOWN]


def find_stragglers(workers: Iterable[JobWorker]) -> dict[int, float]:
    """Return the workers that are slower than usual, and how many times the usual time each of them needs."""
    known = {row.worker: row.compute_s for row in workers if row.state == "member" and row.compute_s > 0}
    if not known:
        return {}
    usual_s = median(known.values())
    return {
        worker: compute_s / usual_s for worker, compute_s in known.items() if compute_s > STRAGGLER * usual_s
    }
