"""The real devices and prices of pools: the declared ones, as nodes and reports correct them. Pure."""

import math
from collections.abc import Iterable

import msgspec

from elastane.cluster.nouns.config import Trigger
from elastane.cluster.nouns.pools import UNSEEN_S, Capacity, Departure, Metric, Node, Pool, Price, Restriction


def limit_pools(
    pools: Iterable[Pool],
    nodes: Iterable[Node],
    capacities: Iterable[Capacity],
    metrics: Iterable[Metric],
    triggers: Iterable[Trigger],
    *,
    now_s: float,
) -> tuple[Pool, ...]:
    """Return the pools as a plan should see them.

    A pool with nodes has the devices of its nodes. Nodes that have failed, or that no engine sees any more,
    have none. Devices of drained nodes are leaving, with the time of the earliest notice. A pool without
    nodes has its declared devices. A reported capacity and every firing trigger are upper bounds.

    Args:
        pools: as declared.
        capacities: valid reports.
        metrics: valid reports, at most one for each name.
    """
    present: dict[str, int] = {}
    leaving: dict[str, int] = {}
    gone_at_s: dict[str, float] = {}
    for node in nodes:
        devices = node.devices if node.wanted != "failed" and now_s - node.heard_s <= UNSEEN_S else 0
        present[node.pool] = present.get(node.pool, 0) + devices
        if node.wanted == "drain":
            leaving[node.pool] = leaving.get(node.pool, 0) + devices
            if devices and node.gone_at_s is not None and node.gone_at_s > now_s:
                gone_at_s[node.pool] = min(gone_at_s.get(node.pool, math.inf), node.gone_at_s)
    bounds: dict[str, int] = {}
    for capacity in capacities:
        _lower_bound(bounds, capacity.pool, capacity.devices)
    values = {metric.metric: metric.value for metric in metrics}
    for trigger in triggers:
        if is_firing(trigger, values.get(trigger.metric)):
            _lower_bound(bounds, trigger.pool, trigger.limit)
    result = []
    for pool in pools:
        devices = present.get(pool.name, pool.devices)
        going = leaving.get(pool.name, pool.leaving)
        # Devices beyond a bound are still there until their jobs have left them.
        staying = min(devices - going, bounds.get(pool.name, devices))
        result.append(
            msgspec.structs.replace(
                pool,
                devices=devices,
                leaving=devices - staying,
                gone_at_s=gone_at_s.get(pool.name, pool.gone_at_s),
            )
        )
    return tuple(result)


def find_departures(nodes: Iterable[Node], *, now_s: float) -> tuple[Departure, ...]:
    """Return the nodes that take devices out of their pools. A node that no engine sees any more has none."""
    return tuple(
        Departure(node=node.name, pool=node.pool, how=node.wanted, why=node.why)
        for node in nodes
        if node.wanted != "use" and node.devices and now_s - node.heard_s <= UNSEEN_S
    )


def find_restrictions(
    capacities: Iterable[Capacity], metrics: Iterable[Metric], triggers: Iterable[Trigger]
) -> tuple[Restriction, ...]:
    """Return the limits of pools from outside: reported capacities, and firing triggers with their names."""
    values = {metric.metric: metric.value for metric in metrics}
    found = [Restriction(pool=capacity.pool, limit=capacity.devices) for capacity in capacities]
    found += [
        Restriction(
            pool=trigger.pool, limit=trigger.limit, trigger=trigger.name, why=_describe_rule(trigger, value)
        )
        for trigger in triggers
        if (value := values.get(trigger.metric)) is not None and is_firing(trigger, value)
    ]
    return tuple(found)


def _describe_rule(trigger: Trigger, value: float) -> str:
    """Return the half of a trigger's rule that holds."""
    if trigger.above is not None and value > trigger.above:
        return f"{trigger.metric} above {trigger.above:g}"
    return f"{trigger.metric} below {trigger.below:g}"


def apply_prices(pools: Iterable[Pool], prices: Iterable[Price]) -> tuple[Pool, ...]:
    """Return the pools at their reported prices; without a report, at their declared ones."""
    reported = {price.pool: price.price for price in prices}
    return tuple(msgspec.structs.replace(pool, price=reported.get(pool.name, pool.price)) for pool in pools)


def is_firing(trigger: Trigger, value: float | None) -> bool:
    """Return whether a metric of this value sets the limit; None: no value was reported, so it does not."""
    if value is None:
        return False
    return (trigger.above is not None and value > trigger.above) or (
        trigger.below is not None and value < trigger.below
    )


def _lower_bound(bounds: dict[str, int], pool: str, devices: int) -> None:
    bounds[pool] = min(bounds.get(pool, devices), devices)
