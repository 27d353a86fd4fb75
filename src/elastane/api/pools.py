"""Pools: devices of one kind, at one site, on the same terms; and the nodes that leave them."""

from typing import Literal

import msgspec


class Pool(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Devices of one kind, at one site, on the same terms. Kueue calls this a resource flavor.

    Args:
        name: unique; quotas are written against it.
        device: the device kind, such as ``h100``.
        devices: how many devices there are on nodes that answer.
        leaving: how many of them are on nodes that are drained or will be taken away.
        gone_at_s: when the first of these are taken away, in seconds since 1970; None: not known.
        devices_per_node: the largest worker that fits on a node; larger ones take whole nodes.
        spot: they can be taken away with a short notice.
        price: of a device for an hour, now.
        site: region or data centre; workers of one job are at one site.
        labels: further properties that jobs may ask for.
    """

    name: str
    device: str
    devices: int
    leaving: int = 0
    gone_at_s: float | None = None
    devices_per_node: int = 8
    spot: bool = False
    price: float = 0.0
    site: str = ""
    labels: dict[str, str] = {}


class Restriction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Something outside the cluster leaves jobs fewer devices of a pool than are there.

    Args:
        pool: the pool.
        limit: the most that jobs may have of them.
        trigger: name of the trigger that sets the limit; empty: the capacity was reported.
        why: the rule of the trigger that holds now, such as ``qps above 100``.
    """

    pool: str
    limit: int
    trigger: str = ""
    why: str = ""


class Departure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A node that takes its devices out of a pool.

    Args:
        node: its name.
        pool: the pool.
        how: ``drain``: its workers are asked to leave; ``failed``: it is gone already.
        why: the reason that was given; empty: none was.
    """

    node: str
    pool: str
    how: Literal["drain", "failed"]
    why: str = ""
