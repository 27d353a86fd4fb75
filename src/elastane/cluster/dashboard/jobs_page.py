"""The page of all jobs: filtered, sorted, and a window of them."""

import time
from collections.abc import Mapping

from elastane.cluster.dashboard.drawings import draw_sizes
from elastane.cluster.dashboard.feed import ClusterFeed
from elastane.cluster.dashboard.job_filter import filter_jobs, parse_filter
from elastane.cluster.dashboard.rendering import PageContent

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
