"""The use of the pools by jobs, and its cost."""

from typing import Literal, TypeAlias

from elastane.common.bodies import AnswerBody
from elastane.common.bounds import Amount, Position

BYTES_PER_GB = 1e9
"""Prices of bytes are for 10^9 of them, as providers write them."""


class Occupancy(AnswerBody, frozen=True, kw_only=True):
    """A pool, and how much of it all teams together use.

    Args:
        pool: its name.
        device: the kind of its devices.
        devices: how many it has, as a plan counts them.
        leaving: how many of those are on nodes that are drained or will be taken away.
        reserved: how many belong to reservations that hold or are announced.
        used: how many jobs use, with the workers that are leaving.
        spot: they can be taken away with a short notice.
        price: of a device for an hour, now.
        site: region or data centre.
        nodes: how many nodes engines have seen in it; 0: its devices are the declared ones.
    """

    pool: str
    device: str
    devices: int
    leaving: int
    reserved: int
    used: int
    spot: bool
    price: float
    site: str
    nodes: int

    @property
    def free(self) -> int:
        """The devices that are idle and that jobs may have.

        Jobs leave reserved devices and nodes that go away as soon as they can, so the devices that jobs use
        count as if they were elsewhere.
        """
        return max(0, self.devices - self.leaving - self.reserved - self.used)


Terms: TypeAlias = Literal["owned", "borrowed", "spot"]
"""The terms of a device's use: owned by the team or its cohort, borrowed from another, or spot."""


class Use(AnswerBody, frozen=True, kw_only=True):
    """Devices that a job uses now, and the price of one of them for an hour."""

    pool: str
    terms: Terms
    devices: Position
    price: Amount = 0.0


class SentBytes(AnswerBody, frozen=True, kw_only=True):
    """Bytes that a job has sent from one site to another, and the price of 10^9 of them."""

    source: str
    target: str
    sent_bytes: Position
    price: Amount = 0.0

    @property
    def cost(self) -> float:
        return self.sent_bytes / BYTES_PER_GB * self.price


class UsageRow(AnswerBody, frozen=True, kw_only=True):
    """Device-seconds of one group; a column that was not grouped by is empty.

    Args:
        pool: of bytes between sites, ``SOURCE>TARGET``.
        egress_bytes: bytes that were sent to other sites.
        egress_cost: the part of ``cost`` that these bytes have caused.
        cost: of devices and bytes together.
    """

    team: str = ""
    user: str = ""
    job: str = ""
    pool: str = ""
    owned_device_s: float = 0.0
    borrowed_device_s: float = 0.0
    spot_device_s: float = 0.0
    egress_bytes: float = 0.0
    egress_cost: float = 0.0
    cost: float = 0.0

    @property
    def device_s(self) -> float:
        """The device-seconds of all terms."""
        return self.owned_device_s + self.borrowed_device_s + self.spot_device_s


class Usage(AnswerBody, frozen=True, kw_only=True):
    """The device-seconds used between two times."""

    from_s: float
    until_s: float
    rows: tuple[UsageRow, ...]


class ClusterFigures(AnswerBody, frozen=True, kw_only=True):
    """The figures that show how well a cluster serves its jobs, between two times.

    A team's token gets those of the jobs of its team, with the utilisation by all teams.

    Args:
        started: jobs that got their first devices.
        queue_s: median of the seconds that these had waited; None: there are none.
        queue_longest_s: the longest of these waits.
        queued: jobs that wait for their first devices at the end.
        queued_longest_s: the longest of their waits until then.
        used_device_s: device-seconds that jobs of all teams used.
        available_device_s: device-seconds of the devices that the pools have now, from the first event of the
            cluster on.
        finished: jobs that finished.
        finish_s: median of the seconds from their submission to their end.
        reached: those of them that had reached the loss of their target.
        target_s: median of the seconds that these took from their submission on.
        interventions: pauses, resumptions, cancellations, new sizes, bounds and priorities of jobs, and
            changes of nodes, that people asked for.
        runs: jobs that held devices.
        cost: in the currency of the pools' prices.
    """

    from_s: float
    until_s: float
    started: int
    queue_s: float | None
    queue_longest_s: float | None
    queued: int
    queued_longest_s: float | None
    used_device_s: float
    available_device_s: float
    finished: int
    finish_s: float | None
    reached: int
    target_s: float | None
    interventions: int
    runs: int
    cost: float

    @property
    def utilisation(self) -> float | None:
        """The share of the devices' time that jobs used; None: there were no devices."""
        return self.used_device_s / self.available_device_s if self.available_device_s else None
