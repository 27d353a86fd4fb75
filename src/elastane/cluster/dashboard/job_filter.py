"""Which jobs a page shows, and in which order. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias, get_args
from urllib.parse import urlencode

import msgspec

from elastane.cluster.nouns.job_words import find_shown_state
from elastane.cluster.nouns.rest import JobSummary
from elastane.common.untrusted_data import read_number

PAGE_ROWS = 50
LONGEST_PAGE = 6
SortKey: TypeAlias = Literal[
    "newest", "name", "team", "state", "workers", "step", "loss", "speed", "age", "next"
]
STATE_ORDER = ("running", "queued", "paused", "failed", "finished", "cancelled")


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of a reader, as the address of the page has it.

    Args:
        q: words that a name, a team, a user, a queue, a priority or the next decision must contain.
        state: empty: every state.
        team: empty: every team.
        sort: the column; ``newest`` is the order of submission.
        down: the largest first.
        page: from 1.
    """

    q: str = ""
    state: str = ""
    team: str = ""
    sort: SortKey = "newest"
    down: bool = False
    page: int = 1

    def format_query(self, **changes: object) -> str:
        """Return the query of the address of this choice, with changes."""
        chosen = msgspec.structs.replace(self, **changes)
        words = {
            "q": chosen.q,
            "state": chosen.state,
            "team": chosen.team,
            "sort": "" if chosen.sort == "newest" else chosen.sort,
            "down": "1" if chosen.down else "",
            "page": "" if chosen.page == 1 else chosen.page,
        }
        return urlencode({name: word for name, word in words.items() if word})

    def sort_by(self, column: SortKey) -> str:
        """Return the query that sorts by a column, in the other direction if it sorts by it already."""
        down = not self.down if column == self.sort else column in {"workers", "step", "speed", "age"}
        return self.format_query(sort=column, down=down, page=1)


class FilteredJobs(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of one page.

    Args:
        rows: in order.
        matching: how many jobs match.
        total: how many there are.
        pages: how many pages the matching ones fill.
        states: how many of all jobs are in each state.
        teams: of all jobs, sorted.
    """

    rows: tuple[JobSummary, ...]
    matching: int
    total: int
    pages: int
    states: Mapping[str, int]
    teams: tuple[str, ...]


def parse_filter(params: Mapping[str, str]) -> JobFilter:
    """Return the choice of an address; a value that means nothing counts as none."""
    sort = params.get("sort", "")
    return JobFilter(
        q=params.get("q", "")[:100].strip(),
        state=params.get("state", "")[:20],
        team=params.get("team", "")[:100],
        sort=sort if sort in get_args(SortKey) else "newest",  # type: ignore[arg-type]
        down=params.get("down") == "1",
        page=max(1, read_number(params.get("page", ""), LONGEST_PAGE) or 1),
    )


def filter_jobs(jobs: Sequence[JobSummary], chosen: JobFilter) -> FilteredJobs:
    """Return a page of the jobs that match; ``jobs`` has the newest first."""
    words = chosen.q.lower().split()
    found = [
        job
        for job in jobs
        if (not chosen.state or job.state == chosen.state)
        and (not chosen.team or job.team == chosen.team)
        and (not words or _matches(job, words))
    ]
    order = SORTS.get(chosen.sort)
    if order is not None:
        found.sort(key=order, reverse=chosen.down)
    elif chosen.down:
        found.reverse()
    pages = max(1, -(-len(found) // PAGE_ROWS))
    begin = (min(chosen.page, pages) - 1) * PAGE_ROWS
    states = Counter(job.state for job in jobs)
    return FilteredJobs(
        rows=tuple(found[begin : begin + PAGE_ROWS]),
        matching=len(found),
        total=len(jobs),
        pages=pages,
        states={state: states[state] for state in STATE_ORDER if states[state]},  # type: ignore[index]
        teams=tuple(sorted({job.team for job in jobs})),
    )


def _matches(job: JobSummary, words: Sequence[str]) -> bool:
    text = f"{job.name} {job.team} {job.user} {job.queue} {job.priority_class} {job.next_decision}".lower()
    return all(word in text for word in words)


SORTS: Mapping[str, Callable[[JobSummary], tuple[float | str, ...]]] = {
    "name": lambda job: (job.name.lower(),),
    "team": lambda job: (job.team, -job.number),
    "state": lambda job: (STATE_ORDER.index(job.state), find_shown_state(job), -job.number),
    "workers": lambda job: (job.workers if job.state == "running" else -1, job.max_workers),
    "step": lambda job: (job.step / job.steps if job.steps else 0.0, job.step),
    "loss": lambda job: (job.loss is None, job.loss or 0.0),
    "speed": lambda job: (job.samples_per_s,),
    "age": lambda job: (-job.submitted_s,),
    "next": lambda job: (not job.next_decision, job.next_decision, -job.number),
}
