"""``elastane tell``: reports to the controller from outside the cluster."""

from typing import Annotated

from elastane.cli.command import AsJson, make_group, print_outcome, wrap_command
from elastane.cli.option_values import read_duration_s
from elastane.cli.options import argument, option
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.pools import Capacity, Metric, Notice, Price, Report
from elastane.common.durations import format_duration
from elastane.common.field_checks import check_finite_fields

Valid = Annotated[str, option("DURATION", "The report is valid for this long.", "--for")]
PoolName = Annotated[str, argument("POOL", "Name of the pool.")]


def report_capacity(
    pool: PoolName,
    devices: Annotated[int, argument("N", "Number of devices.", min=0)],
    valid: Valid = "10min",
    as_json: AsJson = False,
) -> None:
    """Report that POOL has at most N devices."""
    report = Capacity(pool=pool, devices=devices, valid_s=read_duration_s("--for", valid))
    words = f"{pool} has at most {devices} devices for {format_duration(report.valid_s, parts=4)}"
    _send_report(report, words, as_json=as_json)


def report_notice(
    node: Annotated[str, argument("NODE", "Name of the node.")],
    within: Annotated[str, option("DURATION", "Time until the node is taken away.", "--in")],
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
    name: Annotated[str, argument("METRIC", "Name of the metric.")],
    value: Annotated[float, argument("NUMBER", "Its value.")],
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
    hourly: Annotated[float, argument("PRICE", "Price of a device per hour.", min=0)],
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
    print_outcome(report, words, as_json=as_json)


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
