"""Usage and its cost, as JSON and as CSV."""

import csv
import io
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query, Response

from elastane.cluster.controller.access.roles import Target
from elastane.cluster.controller.rest.bodies import respond
from elastane.cluster.controller.rest.caller import CallerParameter
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.store.usage import By, sum_usage
from elastane.cluster.nouns.usage import Usage, UsageRow
from elastane.common.errors import BadField
from elastane.common.safe_text import escape_line

router = APIRouter(prefix="/v1/usage", tags=["usage"])
MONTH_S = 30 * 24 * 3600.0

Moment = Annotated[float | None, Query(ge=0, le=1e11, allow_inf_nan=False, description="Seconds since 1970.")]
Columns = Annotated[list[By] | None, Query(max_length=4, description="Group by these; repeat for several.")]


@router.get("", **describe_route(Usage, or_as="text/csv; charset=utf-8"))
def get_usage(
    caller: CallerParameter,
    by: Columns = None,
    begin: Annotated[Moment, Query(alias="from")] = None,
    until: Moment = None,
    form: Annotated[Literal["json", "csv"], Query(alias="format")] = "json",
) -> Response:
    """Return device-seconds and cost, by default of 30 days, by team. Running jobs count until now."""
    caller.require_right("usage.read", Target(name="usage", team=caller.principal.team))
    until_s = caller.now_s if until is None else min(until, caller.now_s)
    from_s = until_s - MONTH_S if begin is None else begin
    if from_s > until_s:
        end = "now" if until is None or until > caller.now_s else "until"
        raise BadField(
            "from",
            f"{_format_time(from_s)} is after {end}, {_format_time(until_s)}",
            do="write an earlier time",
        )
    columns: tuple[By, ...] = tuple(dict.fromkeys(by or ["team"]))
    with caller.begin_read() as tx:
        found = Usage(
            from_s=from_s, until_s=until_s, rows=sum_usage(tx, columns, from_s, until_s, caller.teams)
        )
    if form == "json":
        return respond(found)
    return Response(format_usage_csv(columns, found.rows), media_type="text/csv; charset=utf-8")


def _format_time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_usage_csv(by: tuple[By, ...], rows: tuple[UsageRow, ...]) -> str:
    """Format usage as CSV (RFC 4180), with a header line."""
    out = io.StringIO()
    numbers = ("owned_device_s", "borrowed_device_s", "spot_device_s", "cost")
    writer = csv.DictWriter(out, (*by, *numbers), extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        fields = msgspec.structs.asdict(row)
        # Each row stays on one line, for programs that do not understand quotes.
        writer.writerow(
            {name: escape_line(field) if isinstance(field, str) else field for name, field in fields.items()}
        )
    return out.getvalue()
