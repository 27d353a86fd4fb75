"""Which page an address shows."""

import re
from collections.abc import Mapping
from urllib.parse import urlencode

from elastane.cluster.dashboard.audit_page import build_audit_page
from elastane.cluster.dashboard.calendar_page import build_calendar_page, build_policy_page
from elastane.cluster.dashboard.cluster_page import build_cluster_page
from elastane.cluster.dashboard.feed import ClusterFeed
from elastane.cluster.dashboard.job_page import build_job_page
from elastane.cluster.dashboard.jobs_page import build_jobs_page
from elastane.cluster.dashboard.rendering import PageContent, PagePart
from elastane.cluster.dashboard.run_page import RunFeed, build_run_page
from elastane.cluster.dashboard.usage_page import build_usage_page
from elastane.common.errors import NoSuchRun

PAGES = ("/", "/jobs", "/jobs/{job}", "/usage", "/calendar", "/policy", "/audit")
FOR_ADMINS = ("team-admin", "operator")
_JOB = re.compile(r"/jobs/([A-Za-z0-9][A-Za-z0-9._-]{0,99})")


def build_page(feed: ClusterFeed | RunFeed, path: str, params: Mapping[str, str]) -> PageContent:
    """Return the page of an address."""
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
