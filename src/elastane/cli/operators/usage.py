"""``elastane usage``: device-hours and their cost."""

import sys
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from elastane.cli.command import AsJson, print_json
from elastane.cli.operators.tables import print_table
from elastane.cli.option_values import read_past_time
from elastane.cli.options import flag, option
from elastane.cli.terminal import write_csv
from elastane.cli.timestamps import format_minute
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.usage import BYTES_PER_GB, Usage, UsageRow
from elastane.common.durations import HOUR_S
from elastane.common.errors import BadInput

Column: TypeAlias = Literal["team", "user", "job", "pool"]


class By(StrEnum):
    """The columns as an enumeration, the only type of choices that Typer accepts in a list."""

    TEAM = "team"
    USER = "user"
    JOB = "job"
    POOL = "pool"


COLUMNS: dict[str, Column] = {"team": "team", "user": "user", "job": "job", "pool": "pool"}

EGRESS = ("egress GB", "egress")
"""The columns of the bytes between sites and of their cost; shown if there were any."""

MANY_H = 10.0
"""From this many device-hours on, two decimal places are shown in place of four."""


def usage(
    *,
    by: Annotated[list[By] | None, flag("Column to group by; repeatable. Default: team.")] = None,
    begin: Annotated[
        str,
        option("TIME", "Start: a date (2026-11-01), a time, or a duration ago (7d). Default: 30d.", "--from"),
    ] = "",
    until: Annotated[str, option("TIME", "End, written like the start. Default: now.")] = "",
    as_csv: Annotated[bool, flag("Print CSV, in device-seconds.", "--csv")] = False,
    as_json: AsJson = False,
) -> None:
    """Show device-hours, bytes between sites, and their cost.

    Running jobs count up to now. Device-hours are owned, borrowed or spot. The
    last column is the whole cost, and the one before it the part for bytes that
    left a site (egress); by pool, these have rows of their own.

    With --json, an object with the keys fromS, untilS and rows, in
    device-seconds.
    """
    if as_csv and as_json:
        raise BadInput("--csv and --json cannot be combined", do="give only one of them")
    now = datetime.now().astimezone()
    columns: tuple[Column, ...] = tuple(dict.fromkeys(COLUMNS[group] for group in by or [By.TEAM]))
    from_s = read_past_time("--from", begin, now).timestamp() if begin else None
    until_s = read_past_time("--until", until, now).timestamp() if until else None
    check_span(from_s, until_s, now.timestamp())
    with connect() as cluster:
        if as_csv:
            write_csv(cluster.usage_csv(*columns, from_s=from_s, until_s=until_s), sys.stdout)
            return
        found = cluster.usage(*columns, from_s=from_s, until_s=until_s)
    if as_json:
        print_json(found)
        return
    print_usage(columns, found)


def check_span(from_s: float | None, until_s: float | None, now_s: float) -> None:
    """Check that a span begins before it ends; it ends now at the latest."""
    end_s = now_s if until_s is None else min(until_s, now_s)
    if from_s is not None and from_s > end_s:
        end = f"--until {format_minute(end_s)}" if end_s == until_s else "now"
        raise BadInput(
            f"--from {format_minute(from_s)} is after {end}", do="give the earlier time with --from"
        )


def print_usage(by: tuple[str, ...], found: Usage) -> None:
    span = f"between {format_minute(found.from_s)} and {format_minute(found.until_s)}"
    whole = sum_rows(found.rows)
    places = 2 if compute_device_hours(whole) >= MANY_H else 4
    columns = ("owned h", "borrowed h", "spot h", "total h", *(EGRESS if whole.egress_bytes else ()), "cost")
    formatted = [format_usage(row, places, egress=bool(whole.egress_bytes)) for row in (*found.rows, whole)]
    keys = [tuple(str(getattr(row, column)) for column in by) for row in found.rows]
    print_table(
        (*by, *columns),
        [(*key, *cells) for key, cells in zip(keys, formatted[:-1], strict=True)],
        numbers=columns,
        empty=f"no usage {span}",
        total=("total", *[""] * (len(by) - 1), *formatted[-1]) if keys else None,
    )


def sum_rows(rows: tuple[UsageRow, ...]) -> UsageRow:
    return UsageRow(
        owned_device_s=sum(row.owned_device_s for row in rows),
        borrowed_device_s=sum(row.borrowed_device_s for row in rows),
        spot_device_s=sum(row.spot_device_s for row in rows),
        egress_bytes=sum(row.egress_bytes for row in rows),
        egress_cost=sum(row.egress_cost for row in rows),
        cost=sum(row.cost for row in rows),
    )


def compute_device_hours(row: UsageRow) -> float:
    """Return the device-hours of a row: owned, borrowed and spot together."""
    return row.device_s / HOUR_S


def format_usage(row: UsageRow, places: int, *, egress: bool) -> tuple[str, ...]:
    """Return the cells of a row: device-hours by their terms and in total, egress, and the whole cost.

    Args:
        egress: with the cells of `EGRESS`.
    """
    terms = (row.owned_device_s, row.borrowed_device_s, row.spot_device_s)
    return (
        *(f"{device_s / HOUR_S:,.{places}f}" for device_s in (*terms, sum(terms))),
        *((f"{row.egress_bytes / BYTES_PER_GB:,.2f}", f"{row.egress_cost:,.2f}") if egress else ()),
        f"{row.cost:,.2f}",
    )
