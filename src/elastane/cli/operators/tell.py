"""``elastane tell``: reports to the controller from outside the cluster."""

from typing import Annotated

import typer

from elastane.api.durations import format_duration
from elastane.api.field_checks import check_finite_fields
from elastane.api.reports import Capacity, Metric, Notice, Price, Report
from elastane.cli.command import AsJson, open_console, print_json, wrap_command
from elastane.cli.operators.declarations import make_group
from elastane.cli.option_values import read_duration_s
from elastane.client.context import connect

Valid = Annotated[str, typer.Option("--for", metavar="DURATION", help="So long it counts.")]


def capacity(
    pool: Annotated[str, typer.Argument(metavar="POOL", show_default=False)],
    devices: Annotated[int, typer.Argument(metavar="N", min=0, show_default=False)],
    valid: Valid = "10min",
    as_json: AsJson = False,
) -> None:
    """Report that POOL has at most N devices; --for limits how long this counts."""
    report = Capacity(pool=pool, devices=devices, valid_s=read_duration_s("--for", valid))
    words = f"{pool} has at most {devices} devices for {format_duration(report.valid_s, parts=4)}"
    _send_report(report, words, as_json=as_json)


def notice(
    node: Annotated[str, typer.Argument(metavar="NODE", show_default=False)],
    within: Annotated[
        str, typer.Option("--in", metavar="DURATION", help="When it is gone.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Report that NODE will be taken away; jobs leave it before then."""
    report = Notice(node=node, in_s=read_duration_s("--in", within))
    _send_report(
        report, f"{node} goes in {format_duration(report.in_s, parts=4)}; jobs leave it now", as_json=as_json
    )


def metric(
    name: Annotated[str, typer.Argument(metavar="METRIC", show_default=False)],
    value: Annotated[float, typer.Argument(metavar="VALUE", show_default=False)],
    valid: Valid = "10min",
    as_json: AsJson = False,
) -> None:
    """Report the value of METRIC to the triggers that use it."""
    report = Metric(metric=name, value=value, valid_s=read_duration_s("--for", valid))
    _send_report(
        report, f"{name} is {value:g} for {format_duration(report.valid_s, parts=4)}", as_json=as_json
    )


def price(
    pool: Annotated[str, typer.Argument(metavar="POOL", show_default=False)],
    hourly: Annotated[float, typer.Argument(metavar="PRICE", min=0, show_default=False)],
    valid: Valid = "10min",
    as_json: AsJson = False,
) -> None:
    """Report that a device of POOL costs PRICE per hour; --for limits how long this counts."""
    report = Price(pool=pool, price=hourly, valid_s=read_duration_s("--for", valid))
    words = f"a device of {pool} costs {hourly:g} an hour for {format_duration(report.valid_s, parts=4)}"
    _send_report(report, words, as_json=as_json)


def _send_report(report: Report, words: str, *, as_json: bool) -> None:
    check_finite_fields(report)
    with connect() as cluster:
        cluster.report(report)
    if as_json:
        print_json(report)
        return
    open_console().print(words, markup=False)


tell = make_group(
    "tell",
    """
Tell the controller what it cannot see itself.

The newest word about each thing counts. A reporter's token is enough.

  $ elastane tell capacity spot 24             [dim]the pool has 24 devices left[/dim]
  $ elastane tell notice n17 --in 2min         [dim]the node will be taken away[/dim]
  $ elastane tell price spot 0.7 --for 1h      [dim]what an hour of a device costs[/dim]
  $ elastane tell metric qps 1250 --for 5min   [dim]see: elastane trigger[/dim]
""",
)
tell.command("capacity")(wrap_command(capacity))
tell.command("notice")(wrap_command(notice))
tell.command("price")(wrap_command(price))
# A negative value is an argument, not an option.
tell.command("metric", context_settings={"ignore_unknown_options": True})(wrap_command(metric))
