"""``elastane trigger``: rules that limit a pool by a reported metric."""

from typing import Annotated

import msgspec
import typer

from elastane.cli.command import AsJson, wrap_command
from elastane.cli.operators.declarations import Name, add_document_commands, change_document, make_group
from elastane.cluster.nouns.config import Trigger
from elastane.common.errors import BadInput


def set_trigger(
    name: Name,
    *,
    metric: Annotated[
        str | None, typer.Option(metavar="METRIC", help="Name of a metric that elastane tell reports.")
    ] = None,
    above: Annotated[
        float | None, typer.Option(metavar="X", help="The limit holds while the metric is above X.")
    ] = None,
    below: Annotated[
        float | None, typer.Option(metavar="X", help="The limit holds while the metric is below X.")
    ] = None,
    pool: Annotated[str | None, typer.Option(metavar="POOL", help="Pool of the devices.")] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Most devices of the pool that jobs may use.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Declare a trigger, or change the given fields of one."""

    def change_trigger(before: Trigger | None) -> Trigger:
        options = {"metric": metric, "above": above, "below": below, "pool": pool, "limit": limit}
        given = {field: value for field, value in options.items() if value is not None}
        missing = [f"--{field}" for field in ("metric", "pool", "limit") if field not in given]
        if before is None and (missing or not given.keys() & {"above", "below"}):
            raise BadInput(
                f"there is no trigger {name} yet: it needs --metric, --pool, --limit, and --above or --below",
                do=f"elastane trigger set {name} --metric qps --above 1000 --pool h100 --limit 32",
            )
        known = before or Trigger(name=name, metric=metric or "", pool=pool or "", limit=limit or 0)
        return msgspec.structs.replace(known, **given)

    change_document("trigger", Trigger, name, change_trigger, as_json=as_json)


def format_condition(one: Trigger) -> str:
    """Return the condition of a trigger as text: ``qps above 1000``."""
    bounds = [f"above {one.above:g}"] if one.above is not None else []
    bounds += [f"below {one.below:g}"] if one.below is not None else []
    return f"{one.metric} {' or '.join(bounds)}"


trigger = make_group(
    "trigger",
    """
Manage triggers: rules that limit a pool while a reported metric is high or low.

  $ elastane trigger set busy --metric qps --above 1000 --pool h100 --limit 32
  $ elastane tell metric qps 1250      [dim]repeat this while you measure[/dim]
""",
)
trigger.command("set")(wrap_command(set_trigger))
add_document_commands(
    trigger,
    "trigger",
    Trigger,
    ("trigger", "condition", "pool", "limit"),
    lambda one: (one.name, format_condition(one), one.pool, str(one.limit)),
    numbers=("limit",),
)
