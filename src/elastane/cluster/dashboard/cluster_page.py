"""The page of the cluster: pools, teams, the queue and the figures."""

import time
from collections import Counter

from elastane.cluster.dashboard.drawings import draw_pool_use
from elastane.cluster.dashboard.feed import SHOWN_QUEUE, ClusterFeed, ClusterSight
from elastane.cluster.dashboard.rendering import PageContent
from elastane.cluster.nouns.usage import ClusterFigures
from elastane.common.durations import format_duration

Tile = tuple[str, str, str, str]
"""Name, value, the words below it, and its explanation."""


def build_cluster_page(feed: ClusterFeed) -> PageContent:
    sight, now_s = feed.sight, time.time()
    return PageContent(
        title="Cluster",
        template="cluster.html",
        parts=("notices", "figures", "pools", "teams", "queue"),
        facts={
            "sight": sight,
            "now_s": now_s,
            "tiles": list_figure_tiles(feed),
            "pools": [
                (
                    pool,
                    draw_pool_use(
                        pool.pool, feed.history.list_devices(pool.pool, now_s), pool.devices, now_s
                    ),
                )
                for pool in sight.pools
            ],
            "teams": list_teams(sight),
            "queue": feed.table.list_queue()[:SHOWN_QUEUE],
            "queued": len(feed.table.list_queue()),
        },
    )


def list_figure_tiles(feed: ClusterFeed) -> list[Tile]:
    """Return the figures of the last day, with those of 30 days below."""
    sight = feed.sight
    day, month = sight.day, sight.month
    states = Counter(job.state for job in feed.table.jobs)
    speed = sum(job.samples_per_s for job in feed.table.jobs if job.state == "running")
    waiting = f"{states['queued']:,} wait, {states['paused']:,} paused"
    tiles: list[Tile] = [("Jobs", f"{states['running']:,} running", waiting, "")]
    if day is None or month is None:
        return tiles
    return [
        *tiles,
        (
            "Queue time",
            _format_span(day.queue_s),
            f"30 days: {_format_span(month.queue_s)}",
            "Median wait of a job from its submission to its first devices.",
        ),
        (
            "Utilisation",
            _format_share(day.utilisation),
            f"30 days: {_format_share(month.utilisation)}",
            "Share of the time of all devices that jobs used.",
        ),
        (
            "Time to a target",
            _format_span(day.target_s if day.reached else day.finish_s),
            f"30 days: {_format_span(month.target_s if month.reached else month.finish_s)}",
            "Median time from the submission to the wanted loss; without such a job, to the end.",
        ),
        (
            "Interventions per run",
            _format_rate(day),
            f"30 days: {_format_rate(month)}",
            "Pauses, resumptions, cancellations, new sizes and changes of nodes that people asked for.",
        ),
        (
            "Goodput now",
            f"{speed:,.0f}" if speed else "\u2013",
            "samples per second",
            "Samples that all running jobs together train on in a second.",
        ),
        (
            "Cost",
            f"{day.cost:,.2f}",
            f"30 days: {month.cost:,.2f}",
            "In the currency of the prices of pools.",
        ),
        ("Finished", f"{day.finished:,}", f"30 days: {month.finished:,}", "Jobs that reached their end."),
    ]


def list_teams(sight: ClusterSight) -> list[tuple[str, str, float, int | None, float]]:
    """Return team, pool, devices in use, quota and borrowed devices of each team in each pool."""
    quotas = {(team.name, quota.pool): quota.nominal_quota for team in sight.teams for quota in team.quotas}
    used = {(row.team, row.pool): row for row in sight.uses}
    return [
        (
            *key,
            used[key].device_s / 60 if key in used else 0.0,
            quotas.get(key),
            used[key].borrowed_device_s / 60 if key in used else 0.0,
        )
        for key in sorted(quotas.keys() | used.keys())
    ]


def _format_span(seconds: float | None) -> str:
    return "\u2013" if seconds is None else format_duration(seconds, parts=2)


def _format_share(share: float | None) -> str:
    return "\u2013" if share is None else f"{100 * share:.0f} %"


def _format_rate(figures: ClusterFigures) -> str:
    return f"{figures.interventions / figures.runs:.2f}" if figures.runs else "\u2013"
