"""Which page an address shows, the pages of lists, and the stream of an open page."""

import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import islice
from urllib.parse import urlencode

import anyio
import msgspec
from anyio import to_thread
from starlette.responses import Response, StreamingResponse

from elastane.cluster.dashboard.calendar_page import build_calendar_page, build_policy_page
from elastane.cluster.dashboard.cluster_page import build_cluster_page
from elastane.cluster.dashboard.drawings import draw_sizes
from elastane.cluster.dashboard.feed import ClusterFeed
from elastane.cluster.dashboard.job_filter import filter_jobs, parse_filter
from elastane.cluster.dashboard.job_page import build_job_page
from elastane.cluster.dashboard.rendering import PageContent, PagePart
from elastane.cluster.dashboard.run_page import RunFeed, build_run_page
from elastane.cluster.dashboard.usage_page import build_usage_page
from elastane.common.errors import ElastaneError, NoSuchRun
from elastane.common.untrusted_data import read_number

PAGES = ("/", "/jobs", "/jobs/{job}", "/usage", "/calendar", "/policy", "/audit")
FOR_ADMINS = ("team-admin", "operator")
_JOB = re.compile(r"/jobs/([A-Za-z0-9][A-Za-z0-9._-]{0,99})")
PAGE_ROWS = 100
LONGEST_ID = 17
COLUMNS = (
    ("name", "Job"),
    ("team", "Team"),
    ("state", "State"),
    ("workers", "Workers"),
    ("step", "Step"),
    ("loss", "Loss"),
    ("speed", "Samples/s"),
    ("age", "Age"),
    ("next", "Next decision"),
)
LOOK_S = 0.15
LEAST_S = 0.3
"""Least interval between two drawings of one page."""
FOLLOW_S = 0.7
"""Interval of drawings of a page that shows a run."""
BEAT_S = 15.0


def build_page(feed: ClusterFeed | RunFeed, path: str, params: Mapping[str, str]) -> PageContent:
    if isinstance(feed, RunFeed):
        if path == "/":
            return build_run_page(feed)
    elif path == "/":
        return build_cluster_page(feed)
    elif path == "/jobs":
        return build_jobs_page(feed, params)
    elif path == "/usage":
        return build_usage_page(feed, params)
    elif path == "/calendar":
        return build_calendar_page(feed)
    elif path == "/policy":
        return build_policy_page(feed, {})
    elif path == "/audit":
        return build_audit_page(feed, params)
    elif found := _JOB.fullmatch(path):
        return build_job_page(feed, found[1], params)
    raise NoSuchRun(f"there is no page {path[:100]}")


def draw_page(feed: ClusterFeed | RunFeed, path: str, params: Mapping[str, str]) -> tuple[PagePart, ...]:
    """Return the parts of the page of an address, which all its readers share."""
    key = f"{path}?{urlencode(params)}"
    return feed.drawn.draw(key, find_version(feed, path), lambda: build_page(feed, path, params))


def follows_run(feed: ClusterFeed | RunFeed, path: str) -> bool:
    """Return whether a page shows a run, which is asked at intervals: it tells of no change by itself."""
    return isinstance(feed, RunFeed) or _JOB.fullmatch(path) is not None


def find_version(feed: ClusterFeed | RunFeed, path: str) -> int:
    """Return a number that grows when what a page shows has changed."""
    if isinstance(feed, RunFeed):
        return 0
    found = _JOB.fullmatch(path)
    return feed.find_version(found[1] if found else "")


def list_navigation(feed: ClusterFeed | RunFeed) -> tuple[tuple[str, str], ...]:
    """Return the address and the name of each page that a reader may see."""
    if isinstance(feed, RunFeed):
        return ()
    role = feed.sight.me.role
    return (
        ("/", "Cluster"),
        ("/jobs", "Jobs"),
        ("/usage", "Usage"),
        ("/calendar", "Calendar"),
        *((("/policy", "What if"),) if role == "operator" else ()),
        *((("/audit", "Audit"),) if role in FOR_ADMINS else ()),
    )


def describe_reader(feed: ClusterFeed | RunFeed) -> str:
    """Return the name and the role of the reader; empty for the page of a run."""
    if isinstance(feed, RunFeed):
        return ""
    me = feed.sight.me
    team = f" of {me.team}" if me.team and me.team != "*" else ""
    return f"{me.user}, {me.role}{team}"


def build_audit_page(feed: ClusterFeed, params: Mapping[str, str]) -> PageContent:
    before = read_number(params.get("before", ""), LONGEST_ID)
    found = feed.ask(lambda cluster: list(islice(cluster.audit(before=before), PAGE_ROWS + 1)))
    return PageContent(
        title="Audit log",
        template="audit.html",
        parts=(),
        facts={
            "lines": found[:PAGE_ROWS],
            "before": before,
            "further": found[PAGE_ROWS - 1].id if len(found) > PAGE_ROWS else None,
        },
    )


def build_jobs_page(feed: ClusterFeed, params: Mapping[str, str]) -> PageContent:
    chosen, now_s = parse_filter(params), time.time()
    found = filter_jobs(feed.table.jobs, chosen)
    return PageContent(
        title="Jobs",
        template="jobs.html",
        parts=("notices", "jobs_count", "jobs_rows"),
        facts={
            "sight": feed.sight,
            "now_s": now_s,
            "chosen": chosen,
            "found": found,
            "columns": COLUMNS,
            "curves": {
                job.name: draw_sizes(feed.table.list_sizes(job.name), job.max_workers, job.ended_s or now_s)
                for job in found.rows
            },
        },
    )


def stream_page(
    feed: ClusterFeed | RunFeed, path: str, params: Mapping[str, str], is_over: Callable[[], bool]
) -> Response:
    """Return a stream with the parts of a page, and those that change, until the page is closed."""
    return StreamingResponse(
        _stream(feed, path, dict(params), is_over),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _stream(
    feed: ClusterFeed | RunFeed, path: str, params: Mapping[str, str], is_over: Callable[[], bool]
) -> AsyncIterator[bytes]:
    sent: dict[str, str] = {}
    version, drawn_s, beaten_s = -1, -1e9, time.monotonic()
    longest_s = FOLLOW_S if follows_run(feed, path) else BEAT_S
    yield b"retry: 1000\n\n"
    while not is_over() and not feed.is_over:
        feed.touch()
        now_s = time.monotonic()
        since_s, latest = now_s - drawn_s, find_version(feed, path)
        if (since_s >= LEAST_S and latest != version) or since_s >= longest_s:
            version, drawn_s = latest, now_s
            try:
                parts = await to_thread.run_sync(draw_page, feed, path, params)
            except ElastaneError as error:
                yield frame("trouble", error.what)
                continue
            fresh = [part for part in parts if sent.get(part.name) != part.digest]
            if fresh:
                sent |= {part.name: part.digest for part in fresh}
                yield frame("parts", [(part.name, part.digest, part.html) for part in fresh])
        if now_s - beaten_s > BEAT_S:
            beaten_s = now_s
            yield b": still here\n\n"
        await anyio.sleep(LOOK_S)
    # The page loads again: it finds the sign-in, or another dashboard.
    yield frame("ended", feed.refusal)


def frame(kind: str, value: object) -> bytes:
    """Format a server-sent event; its JSON has no line breaks."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(value))
