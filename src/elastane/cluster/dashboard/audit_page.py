"""The audit log: actions that people asked for, done or refused."""

from collections.abc import Mapping
from itertools import islice

from elastane.cluster.dashboard.feed import ClusterFeed
from elastane.cluster.dashboard.rendering import PageContent

PAGE_ROWS = 100


def build_audit_page(feed: ClusterFeed, params: Mapping[str, str]) -> PageContent:
    """Return a page of the audit log."""
    text = params.get("before", "")
    before = int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None  # noqa: PLR2004
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
