"""Reports about the cluster from other systems: capacity, notices, metrics, prices."""

from typing import TypeAlias

from elastane.common.bodies import RequestBody


class Capacity(RequestBody, frozen=True, kw_only=True, tag="capacity", tag_field="kind"):
    """A pool has at most ``devices`` devices, until the next report or until ``valid_s`` has passed."""

    pool: str
    devices: int
    valid_s: float = 600.0


class Notice(RequestBody, frozen=True, kw_only=True, tag="notice", tag_field="kind"):
    """A node will be taken away in ``in_s`` seconds."""

    node: str
    in_s: float


class Metric(RequestBody, frozen=True, kw_only=True, tag="metric", tag_field="kind"):
    """A measurement, for `Trigger`."""

    metric: str
    value: float
    valid_s: float = 600.0


class Price(RequestBody, frozen=True, kw_only=True, tag="price", tag_field="kind"):
    """A device of a pool costs ``price`` an hour, until the next report or until ``valid_s`` has passed."""

    pool: str
    price: float
    valid_s: float = 600.0


Report: TypeAlias = Capacity | Notice | Metric | Price
