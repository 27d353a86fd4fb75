"""Usage and cost: by day, and by team, user, job or pool."""

import time
from collections.abc import Mapping
from typing import Literal, get_args

from elastane.cluster.dashboard.drawings import draw_days
from elastane.cluster.dashboard.feed import ClusterFeed
from elastane.cluster.dashboard.rendering import PageContent
from elastane.common.durations import DAY_S

By = Literal["team", "user", "job", "pool"]
SPANS = (1, 7, 30)
MOST_ROWS = 500


def read_choice(params: Mapping[str, str]) -> tuple[By, int]:
    """Return the column to group by and the number of days of an address."""
    by, days = params.get("by", ""), params.get("days", "")
    return (
        by if by in get_args(By) else "team",  # type: ignore[return-value]
        int(days) if days in {str(span) for span in SPANS} else SPANS[-1],
    )


def build_usage_page(feed: ClusterFeed, params: Mapping[str, str]) -> PageContent:
    by, days = read_choice(params)
    now_s = time.time()
    usage = feed.ask(lambda cluster: cluster.usage(by, from_s=now_s - days * DAY_S))
    each_day = feed.ask(lambda cluster: feed.days.read(cluster, now_s))
    rows = sorted(usage.rows, key=lambda row: (-row.cost, -row.device_s))
    return PageContent(
        title="Usage",
        template="usage.html",
        parts=(),
        facts={
            "by": by,
            "days": days,
            "spans": SPANS,
            "columns": get_args(By),
            "rows": rows[:MOST_ROWS],
            "left_out": max(0, len(rows) - MOST_ROWS),
            "most_s": max((row.device_s for row in rows), default=0.0),
            "whole_s": sum(row.device_s for row in rows),
            "egress": sum(row.egress_cost for row in rows),
            "cost": sum(row.cost for row in rows),
            "hours_chart": draw_days("device-hours", [(day, used_s / 3600) for day, used_s, _ in each_day]),
            "cost_chart": draw_days("cost", [(day, cost) for day, _, cost in each_day]),
        },
    )


def read_usage_csv(feed: ClusterFeed, params: Mapping[str, str]) -> tuple[str, str]:
    """Return the name and the content of a CSV file of the usage."""
    by, days = read_choice(params)
    from_s = time.time() - days * DAY_S
    return f"usage-by-{by}-{days}-days.csv", feed.ask(lambda cluster: cluster.usage_csv(by, from_s=from_s))
