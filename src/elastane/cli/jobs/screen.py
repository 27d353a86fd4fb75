"""The screen of ``elastane top``."""

from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from elastane.cli.jobs.job_display import NUMBER_COLUMNS, list_health_lines, render_state
from elastane.cli.tables import build_table
from elastane.cluster.nouns.job_words import (
    format_age,
    format_job_loss,
    format_job_speed,
    format_job_step,
    format_job_workers,
)
from elastane.cluster.nouns.rest import JobSummary
from elastane.cluster.nouns.usage import Occupancy
from elastane.common.safe_text import fold_text

if TYPE_CHECKING:
    from elastane.cli.jobs.top import ClusterView

CELLS = 10
NARROW = 100
"""Columns of the screen; a narrower one has no progress bars for jobs."""
AROUND = 5
"""Lines of the screen besides the rows of pools and jobs."""


def render_screen(sight: "ClusterView", url: str, width: int, height: int) -> RenderableType:
    """Return the whole screen for a terminal of this width in columns and height in lines."""
    head = Table.grid(expand=True)
    head.add_column(no_wrap=True)
    head.add_column(justify="right", no_wrap=True)
    now = f"{datetime.fromtimestamp(sight.time_s).astimezone():%H:%M:%S}"
    head.add_row(
        Text.assemble(("elastane", "bold"), f"  {fold_text(url)}"), Text(f"{now}   q: quit", style="dim")
    )
    warnings = list_health_lines(sight.problems, sight.time_s) if sight.failing else [Text()]
    rows = max(0, height - AROUND - len(sight.pools) - (len(warnings) - 1))
    parts: list[RenderableType] = [head, *warnings, render_pools(sight, width), Text()]
    parts.append(render_jobs(sight, rows, width))
    return Group(*parts)


def render_pools(sight: "ClusterView", width: int | None = None) -> Table:
    """Return a table with a row per pool that shows how full the pool is."""
    titles = ["pool", "device", "", "used", "free", "leaving", "reserved", "price", "site"]
    rows = [_pool_row(pool) for pool in sight.pools]
    return build_table(titles, rows, numbers=NUMBER_COLUMNS, width=width, giving=("site", "pool", "device"))


def render_jobs(sight: "ClusterView", rows: int | None = None, width: int | None = None) -> RenderableType:
    """Return a table with a row per job; at most ``rows`` rows and ``width`` columns, None: without limit."""
    if not sight.jobs:
        return Text("no jobs", style="dim")
    titles = ["name", "team", "state", "workers", "", "step", "loss", "samples/s", "age"]
    fitting = sight.jobs if rows is None or len(sight.jobs) <= rows else sight.jobs[: max(0, rows - 1)]
    bars = width is None or width >= NARROW
    cells = [_job_row(job, sight.time_s, bars=bars) for job in fitting]
    table = build_table(titles, cells, numbers=NUMBER_COLUMNS, width=width, giving=("team", "name"))
    if len(fitting) < len(sight.jobs) or sight.more:
        return Group(table, Text("and more; elastane jobs lists all", style="dim"))
    return table


def render_bar(part: float, style: str) -> Text:
    """Return a bar that shows a fraction, 0 to 1."""
    full = round(min(1.0, max(0.0, part)) * CELLS)
    return Text.assemble(("━" * full, style), ("─" * (CELLS - full), "dim"))


def _pool_row(pool: Occupancy) -> list[Text]:
    part = pool.used / pool.devices if pool.devices else float(pool.used > 0)
    kind = f"{pool.device} spot" if pool.spot else pool.device
    return [
        Text(pool.pool),
        Text(kind),
        render_bar(part, "green" if pool.free else "yellow"),
        Text(f"{pool.used}/{pool.devices}"),
        Text(f"{pool.free}"),
        Text(f"{pool.leaving}" if pool.leaving else ""),
        Text(f"{pool.reserved}" if pool.reserved else ""),
        Text(f"{pool.price:g}" if pool.price else ""),
        Text(pool.site),
    ]


def _job_row(job: JobSummary, now_s: float, *, bars: bool) -> list[Text]:
    return [
        Text(job.name),
        Text(job.team),
        render_state(job, now_s),
        Text(format_job_workers(job)),
        render_bar(job.step / job.steps, "bright_blue") if job.steps and bars else Text(),
        Text(format_job_step(job)),
        Text(format_job_loss(job)),
        Text(format_job_speed(job)),
        Text(format_age(now_s - job.submitted_s)),
    ]
