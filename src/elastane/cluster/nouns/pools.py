"""Pools of devices, the nodes that provide them, and the reports of other systems about them."""

from typing import Literal, TypeAlias

import msgspec

from elastane.cluster.nouns.option_forms import CPUS, WORKERS
from elastane.common.bodies import AnswerBody, RequestBody

NodeWanted: TypeAlias = Literal["use", "drain", "failed"]


ENGINE_LABEL = "elastane.dev/engine"
"""Every pool has this label, with its engine as the value, so that a job can ask for one engine."""
UNSEEN_S = 300.0
"""A node that no engine has seen for this long counts as gone."""


class Pool(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Devices of one kind, at one site, on the same terms. Kueue calls this a resource flavor.

    Args:
        name: unique; quotas refer to it.
        device: the device kind, such as ``h100``.
        devices: number of devices on nodes that answer.
        leaving: how many of them are on nodes that are drained or will be taken away.
        gone_at_s: when the first of these will be taken away, in seconds since 1970; None: unknown.
        devices_per_node: devices of the largest worker that fits on a node; a larger worker takes whole
            nodes.
        spot: they can be taken away with a short notice.
        price: current price of a device for an hour.
        site: region or data centre; workers of one job are at one site.
        labels: further properties that jobs may require.
        engine: starts the agents of jobs that get devices of the pool; empty: the machine of the controller.
        options: of the pool in its engine; see `elastane.cluster.nouns.engine_options`.
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
    engine: str = ""
    options: dict[str, str] = {}

    @property
    def place(self) -> tuple[str, str]:
        """The engine and the site. Workers of one job are at one place: no run is divided between engines."""
        return self.engine, self.site

    def count_agent_workers(self, devices: int) -> int:
        """Return the most workers that an agent of an engine may have in this pool, at least one.

        Args:
            devices: of each worker.
        """
        given = self.options.get(WORKERS.name, "")
        most = int(given) if CPUS.fits(given) else 1
        return max(1, min(most, self.devices_per_node // devices))


class Restriction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A limit from outside the cluster that leaves jobs fewer devices of a pool than it has.

    Args:
        limit: the most devices that jobs may have.
        trigger: name of the trigger that sets the limit; empty: a reported capacity sets it.
        why: the condition of the trigger that holds now, such as ``qps above 100``.
    """

    pool: str
    limit: int
    trigger: str = ""
    why: str = ""


class Departure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A node that takes its devices out of a pool.

    Args:
        how: ``drain``: its workers leave; ``failed``: it is gone already.
        why: the given reason; empty: none was given.
    """

    node: str
    pool: str
    how: Literal["drain", "failed"]
    why: str = ""


class Node(AnswerBody, frozen=True, kw_only=True):
    """A machine.

    Args:
        name: unique.
        pool: the pool that its devices belong to.
        devices: how many.
        wanted: ``use`` it, ``drain`` it (jobs leave), or treat it as ``failed`` (its workers are gone
            already).
        why: the reason given for a drain or a failure.
        gone_at_s: when it will be taken away; None: no notice was given.
        heard_s: when its engine last saw it.
        version: grows with every change; its ``ETag``.
    """

    name: str
    pool: str
    devices: int
    wanted: NodeWanted
    why: str
    gone_at_s: float | None
    heard_s: float
    version: int


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
