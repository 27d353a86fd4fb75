"""What outsiders report about the cluster: capacity, notices, metrics, prices."""

from typing import TypeAlias

from elastane.api.bodies import RequestBody


class Capacity(RequestBody, frozen=True, kw_only=True, tag="capacity", tag_field="kind"):
    """A pool has no more than so many devices, until somebody says otherwise or ``valid_s`` has passed."""

    pool: str
    devices: int
    valid_s: float = 600.0


class Notice(RequestBody, frozen=True, kw_only=True, tag="notice", tag_field="kind"):
    """A node will be taken away in so many seconds."""

    node: str
    in_s: float


class Metric(RequestBody, frozen=True, kw_only=True, tag="metric", tag_field="kind"):
    """A measurement, for `Trigger`."""

    metric: str
    value: float
    valid_s: float = 600.0


class Price(RequestBody, frozen=True, kw_only=True, tag="price", tag_field="kind"):
    """A device of a pool costs so much an hour, until somebody says otherwise or ``valid_s`` has passed."""

    pool: str
    price: float
    valid_s: float = 600.0


Report: TypeAlias = Capacity | Notice | Metric | Price
