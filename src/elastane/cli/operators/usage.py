"""``elastane usage``: device-hours and their cost."""

import sys
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

import typer

from elastane.api.errors import BadInput
from elastane.api.usage import Usage, UsageRow
from elastane.cli.command import AsJson, print_json
from elastane.cli.operators.tables import print_table
from elastane.cli.option_values import read_past_time
from elastane.cli.terminal import write_csv
from elastane.cli.timestamps import format_minute
from elastane.client.context import connect

Column: TypeAlias = Literal["team", "user", "job", "pool"]


class By(StrEnum):
    """The columns as an enumeration, the only type of choices that Typer accepts in a list."""

    TEAM = "team"
    USER = "user"
    JOB = "job"
    POOL = "pool"


COLUMNS: dict[str, Column] = {"team": "team", "user": "user", "job": "job", "pool": "pool"}

HOUR_S = 3600.0
MANY_H = 10.0
"""From this many device-hours on, two decimal places are shown in place of four."""


def usage(
    *,
    by: Annotated[
        list[By] | None, typer.Option(help="Group by it; again for more. At first team.", show_default=False)
    ] = None,
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="2026-11-01, or 7d for a week ago; at first 30d.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Likewise; at first now.")] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="For spreadsheets, in device-seconds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show device-hours and their cost: owned, borrowed and spot.

    Running jobs count up to now.

    With --json, an object with the keys fromS, untilS and rows, in
    device-seconds.
    """
    if as_csv and as_json:
        raise BadInput("--csv and --json are two formats", do="choose one")
    now = datetime.now().astimezone()
    columns: tuple[Column, ...] = tuple(dict.fromkeys(COLUMNS[one] for one in by or [By.TEAM]))
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
    show(columns, found)


def check_span(from_s: float | None, until_s: float | None, now_s: float) -> None:
    """Check that a span begins before it ends; it ends now at the latest.

    Raises:
        BadInput: the span begins too late; an empty answer would look like no usage.
    """
    end_s = now_s if until_s is None else min(until_s, now_s)
    if from_s is not None and from_s > end_s:
        end = f"--until {format_minute(end_s)}" if end_s == until_s else "now"
        raise BadInput(
            f"--from {format_minute(from_s)} is after {end}", do="write the earlier moment with --from"
        )


def show(by: tuple[str, ...], found: Usage) -> None:
    span = f"between {format_minute(found.from_s)} and {format_minute(found.until_s)}"
    whole = summed(found.rows)
    places = 2 if hours(whole) >= MANY_H else 4
    rows = [(*(str(getattr(row, column)) for column in by), *figures(row, places)) for row in found.rows]
    print_table(
        (*by, "owned h", "borrowed h", "spot h", "all h", "cost"),
        rows,
        numbers=("owned h", "borrowed h", "spot h", "all h", "cost"),
        empty=f"nothing was used {span}",
        total=("all", *[""] * (len(by) - 1), *figures(whole, places)) if rows else None,
    )


def summed(rows: tuple[UsageRow, ...]) -> UsageRow:
    return UsageRow(
        owned_device_s=sum(row.owned_device_s for row in rows),
        borrowed_device_s=sum(row.borrowed_device_s for row in rows),
        spot_device_s=sum(row.spot_device_s for row in rows),
        cost=sum(row.cost for row in rows),
    )


def hours(row: UsageRow) -> float:
    """Return the device-hours of a row: owned, borrowed and spot together."""
    return (row.owned_device_s + row.borrowed_device_s + row.spot_device_s) / HOUR_S


def figures(row: UsageRow, places: int) -> tuple[str, ...]:
    """Return the cells of a row: owned, borrowed, spot and total device-hours, and the cost."""
    terms = (row.owned_device_s, row.borrowed_device_s, row.spot_device_s)
    return (*(f"{one / HOUR_S:,.{places}f}" for one in (*terms, sum(terms))), f"{row.cost:,.2f}")
