"""``elastane pool`` and ``trigger``: pools of devices, and rules that limit a pool by a reported metric."""

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from elastane.cli.command import AsJson, make_group, open_console, print_json
from elastane.cli.operators.declarations import (
    Name,
    add_document_commands,
    add_show_and_remove,
    change_document,
)
from elastane.cli.operators.engine import OF_POOLS, OptionList, change_options, make_flag
from elastane.cli.operators.tables import print_rows
from elastane.cli.option_values import read_labels
from elastane.cli.options import expand_options, flag, option, replace_given
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.config import Trigger
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.nouns.usage import Occupancy
from elastane.common.errors import BadInput

NAMED = ("partition", "account", "qos", "constraint", "time")
"""Options of pools in their engine that have an option of the command line."""


class PoolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``elastane pool set`` as typed; None: not typed."""

    device: Annotated[str | None, option("KIND", "Kind of device, such as h100.")] = None
    devices: Annotated[int | None, option("N", "Number of devices.", min=0)] = None
    per_node: Annotated[int | None, option("N", "Devices of each node. Default: 8.", min=1)] = None
    spot: Annotated[
        bool | None, flag("Whether the devices can be taken away. Default: on demand.", "--spot/--on-demand")
    ] = None
    price: Annotated[float | None, option("PRICE", "Price of a device per hour. Default: 0.", min=0)] = None
    site: Annotated[str | None, option("SITE", "Region or data centre of the pool.")] = None
    label: Annotated[list[str] | None, option("K=V", "A label that jobs can require; repeatable.")] = None
    engine: Annotated[
        str | None,
        option("ENGINE", "Engine that starts the jobs of the pool; '' for the machine of the controller."),
    ] = None
    partition: Annotated[str | None, make_flag(OF_POOLS["partition"])] = None
    account: Annotated[str | None, make_flag(OF_POOLS["account"])] = None
    qos: Annotated[str | None, make_flag(OF_POOLS["qos"])] = None
    constraint: Annotated[str | None, make_flag(OF_POOLS["constraint"])] = None
    time: Annotated[str | None, make_flag(OF_POOLS["time"])] = None
    option: OptionList = None


@expand_options
def set_pool(name: Name, *, options: PoolOptions, as_json: AsJson = False) -> None:
    """Declare a pool, or change the given fields of one; defaults are for a new pool.

    If engines have seen nodes of the pool, the pool has the devices of those
    nodes, and --devices is ignored.
    """

    def change_pool(before: Pool | None) -> Pool:
        # The devices of a pool with an engine are those of its nodes.
        counted = options.devices is not None or options.engine
        if before is None and (options.device is None or not counted):
            needed, rest = "--device and --devices", "--devices 64"
            if options.engine:
                needed, rest = "--device", f"--engine {options.engine}"
            raise BadInput(
                f"there is no pool {name} yet, so it needs {needed}",
                do=f"elastane pool set {name} --device h100 {rest}",
            )
        known = before or Pool(name=name, device="", devices=0)
        # Options of an engine mean nothing without it.
        kept = {} if options.engine == "" else known.options
        return replace_given(
            known,
            device=options.device,
            devices=options.devices,
            devices_per_node=options.per_node,
            spot=options.spot,
            price=options.price,
            site=options.site,
            labels=None if options.label is None else read_labels(options.label),
            engine=options.engine,
            options=change_options(kept, options.option, {name: getattr(options, name) for name in NAMED}),
        )

    after = change_document("pool", Pool, name, change_pool, as_json=as_json)
    with connect() as cluster:
        _warn_unseen((row for row in cluster.occupancy() if row.pool == name), {name: after})


def _warn_unseen(rows: Iterable[Occupancy], declared: Mapping[str, Pool]) -> None:
    """Warn on stderr about pools without a seen node.

    Their jobs run on the controller's machine or, in a pool of an engine without devices, nowhere.
    """
    unseen = [row for row in rows if not row.nodes]
    here = [row.pool for row in unseen if row.devices and not declared[row.pool].engine]
    console = open_console(as_json=True)
    if here:
        console.print(
            f"warning: no engine has seen a node of pool {', '.join(here)}: the pool has its declared"
            " devices, and jobs that get them run on the controller's own machine",
            markup=False,
        )
    for row in unseen:
        if (engine := declared[row.pool].engine) and not row.devices:
            console.print(
                f"warning: engine {engine} has shown no node of pool {row.pool}: the pool has no devices, and"
                " no job starts there",
                markup=False,
            )


def show_pools(as_json: AsJson = False) -> None:
    """List the pools with their used and free devices.

    With --json, a list of objects with the keys pool (as declared), nodes
    (that engines have seen), devices (as the scheduler counts them now),
    leaving, reserved (by the calendar, from the announcement on), used, free
    and price (the present one).
    """
    with connect() as cluster:
        declared = {pool.name: pool for pool in cluster.documents.list(Pool)}
        now = [row for row in cluster.occupancy() if row.pool in declared]
    if as_json:
        print_json(
            [
                {"pool": declared[row.pool], "nodes": row.nodes, "devices": row.devices}
                | {"leaving": row.leaving, "reserved": row.reserved, "used": row.used}
                | {"free": row.free, "price": row.price}
                for row in now
            ]
        )
        return
    print_rows(
        now,
        {
            "pool": lambda row: row.pool,
            "device": lambda row: row.device,
            "nodes": lambda row: str(row.nodes),
            "devices": lambda row: str(row.devices),
            "leaving": lambda row: str(row.leaving or ""),
            "reserved": lambda row: str(row.reserved or ""),
            "used": lambda row: str(row.used),
            "free": lambda row: str(row.free),
            "terms": lambda row: "spot" if row.spot else "on demand",
            "price/h": lambda row: f"{row.price:g}",
            "site": lambda row: row.site,
            "engine": lambda row: declared[row.pool].engine,
            "labels": lambda row: " ".join(f"{k}={v}" for k, v in declared[row.pool].labels.items()),
        },
        as_json=False,
        numbers=("nodes", "devices", "leaving", "reserved", "used", "free", "price/h"),
        empty="no pool is declared",
    )
    _warn_unseen(now, declared)


pool = make_group(
    "pool",
    """
Manage pools: devices of one kind, at one site and in one engine, on the same terms.

  $ elastane pool set h100 --device h100 --devices 64 --price 2.1 --site eu
  $ elastane pool set spot --device h100 --devices 32 --spot --price 0.7
  $ elastane pool set spot --price 0.9      [dim]other fields stay as they are[/dim]
  $ elastane pool set a100 --device a100 --engine hpc --partition gpu
""",
    {"set": set_pool, "list": show_pools},
)
add_show_and_remove(pool, "pool", Pool)


def set_trigger(
    name: Name,
    *,
    metric: Annotated[str | None, option("METRIC", "Name of a metric that elastane tell reports.")] = None,
    above: Annotated[float | None, option("X", "The limit holds while the metric is above X.")] = None,
    below: Annotated[float | None, option("X", "The limit holds while the metric is below X.")] = None,
    pool: Annotated[str | None, option("POOL", "Pool of the devices.")] = None,
    limit: Annotated[int | None, option("N", "Most devices of the pool that jobs may use.", min=0)] = None,
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


def format_condition(trigger: Trigger) -> str:
    """Return the condition of a trigger as text: ``qps above 1000``."""
    bounds = [f"above {trigger.above:g}"] if trigger.above is not None else []
    bounds += [f"below {trigger.below:g}"] if trigger.below is not None else []
    return f"{trigger.metric} {' or '.join(bounds)}"


trigger = make_group(
    "trigger",
    """
Manage triggers: rules that limit a pool while a reported metric is high or low.

  $ elastane trigger set busy --metric qps --above 1000 --pool h100 --limit 32
  $ elastane tell metric qps 1250      [dim]repeat this while you measure[/dim]
""",
    {"set": set_trigger},
)
add_document_commands(
    trigger,
    "trigger",
    Trigger,
    {
        "trigger": lambda trigger: trigger.name,
        "condition": format_condition,
        "pool": lambda trigger: trigger.pool,
        "limit": lambda trigger: str(trigger.limit),
    },
    numbers=("limit",),
)
