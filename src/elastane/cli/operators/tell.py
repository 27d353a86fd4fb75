"""``elastane tell``: reports to the controller from outside the cluster."""

from typing import Annotated

import typer

from elastane.cli.command import AsJson, make_group, print_answer, wrap_command
from elastane.cli.option_values import read_duration_s
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.pools import Capacity, Metric, Notice, Price, Report
from elastane.common.durations import format_duration
from elastane.common.field_checks import check_finite_fields

Valid = Annotated[str, typer.Option("--for", metavar="DURATION", help="The report is valid for this long.")]
PoolName = Annotated[str, typer.Argument(metavar="POOL", help="Name of the pool.")]


def report_capacity(
    pool: PoolName,
    devices: Annotated[int, typer.Argument(metavar="N", min=0, help="Number of devices.")],
    valid: Valid = "10min",
    as_json: AsJson = False,
) -> None:
    """Report that POOL has at most N devices."""
    report = Capacity(pool=pool, devices=devices, valid_s=read_duration_s("--for", valid))
    words = f"{pool} has at most {devices} devices for {format_duration(report.valid_s, parts=4)}"
    _send_report(report, words, as_json=as_json)


def report_notice(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.")],
    within: Annotated[
        str, typer.Option("--in", metavar="DURATION", help="Time until the node is taken away.")
    ],
    as_json: AsJson = False,
) -> None:
    """Report that NODE will be taken away. Jobs leave it before then."""
    report = Notice(node=node, in_s=read_duration_s("--in", within))
    _send_report(
        report,
        f"{node} is taken away in {format_duration(report.in_s, parts=4)}; jobs leave it now",
        as_json=as_json,
    )


def report_metric(
    name: Annotated[str, typer.Argument(metavar="METRIC", help="Name of the metric.")],
    value: Annotated[float, typer.Argument(metavar="NUMBER", help="Its value.")],
    valid: Valid = "10min",
    as_json: AsJson = False,
) -> None:
    """Report the value of METRIC to the triggers that use it."""
    report = Metric(metric=name, value=value, valid_s=read_duration_s("--for", valid))
    _send_report(
        report, f"{name} is {value:g} for {format_duration(report.valid_s, parts=4)}", as_json=as_json
    )


def report_price(
    pool: PoolName,
    hourly: Annotated[float, typer.Argument(metavar="PRICE", min=0, help="Price of a device per hour.")],
    valid: Valid = "10min",
    as_json: AsJson = False,
) -> None:
    """Report that a device of POOL costs PRICE per hour."""
    report = Price(pool=pool, price=hourly, valid_s=read_duration_s("--for", valid))
    words = f"a device of {pool} costs {hourly:g} per hour for {format_duration(report.valid_s, parts=4)}"
    _send_report(report, words, as_json=as_json)


def _send_report(report: Report, words: str, *, as_json: bool) -> None:
    check_finite_fields(report)
    with connect() as cluster:
        cluster.report(report)
    print_answer(report, words, as_json=as_json)


tell = make_group(
    "tell",
    """
Report facts that the controller cannot observe itself.

The newest report about each subject counts. A reporter's token is enough.

  $ elastane tell capacity spot 24             [dim]the pool has at most 24 devices[/dim]
  $ elastane tell notice n17 --in 2min         [dim]the node will be taken away[/dim]
  $ elastane tell price spot 0.7 --for 1h      [dim]a device costs 0.7 per hour[/dim]
  $ elastane tell metric qps 1250 --for 5min   [dim]see elastane trigger --help[/dim]
""",
    {"capacity": report_capacity, "notice": report_notice, "price": report_price},
)
# A negative value is an argument, not an option.
tell.command("metric", context_settings={"ignore_unknown_options": True})(wrap_command(report_metric))
