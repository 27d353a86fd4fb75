"""The jobs that a token may see, in memory."""

from collections import deque
from collections.abc import Iterable, Sequence

from elastane.cluster.nouns.job_records import ENDED
from elastane.cluster.nouns.rest import Job, JobSummary

MOST_SIZES = 24

FIELDS = JobSummary.__struct_fields__
Sizes = tuple[tuple[float, int], ...]


def summarize(job: JobSummary) -> JobSummary:
    """Return a row of a list; a full record has much more."""
    if not isinstance(job, Job):
        return job
    return JobSummary(**{name: getattr(job, name) for name in FIELDS})


class JobTable:
    """Jobs by name; ``jobs`` has all, the newest first, and is replaced as a whole. One thread writes."""

    def __init__(self) -> None:
        self.jobs: tuple[JobSummary, ...] = ()
        self._by_name: dict[str, JobSummary] = {}
        self._sizes: dict[str, deque[tuple[float, int]]] = {}

    def put(self, jobs: Iterable[JobSummary], now_s: float) -> bool:
        """Add or replace jobs; return whether any differs from before."""
        changed = False
        for job in jobs:
            before = self._by_name.get(job.name)
            if before == job:
                continue
            changed = True
            self._by_name[job.name] = job
            if before is None or before.workers != job.workers:
                begin_s = job.started_s or job.submitted_s
                self._sizes.setdefault(job.name, deque(maxlen=MOST_SIZES)).append(
                    (begin_s if before is None else now_s, job.workers)
                )
        if changed:
            self._sort()
        return changed

    def remove(self, name: str) -> None:
        self._by_name.pop(name, None)
        self._sizes.pop(name, None)
        self._sort()

    def find(self, name: str) -> JobSummary | None:
        return self._by_name.get(name)

    def list_alive(self) -> list[JobSummary]:
        return [job for job in self.jobs if job.state not in ENDED]

    def list_queue(self) -> list[JobSummary]:
        """Return the jobs that wait, the oldest first."""
        return [job for job in reversed(self.jobs) if job.state == "queued"]

    def list_sizes(self, name: str) -> Sequence[tuple[float, int]]:
        """Return ``(since, workers)`` of a job for each change that was seen."""
        return tuple(self._sizes.get(name, ()))

    def _sort(self) -> None:
        self.jobs = tuple(sorted(self._by_name.values(), key=lambda job: -job.number))
