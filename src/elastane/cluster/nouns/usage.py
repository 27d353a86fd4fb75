"""The use of the pools by jobs, and its cost."""

from typing import Literal, TypeAlias

from elastane.common.bodies import AnswerBody
from elastane.common.bounds import Amount, Position


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


class UsageRow(AnswerBody, frozen=True, kw_only=True):
    """Device-seconds of one group; a column that was not grouped by is empty."""

    team: str = ""
    user: str = ""
    job: str = ""
    pool: str = ""
    owned_device_s: float = 0.0
    borrowed_device_s: float = 0.0
    spot_device_s: float = 0.0
    cost: float = 0.0


class Usage(AnswerBody, frozen=True, kw_only=True):
    """The device-seconds used between two times."""

    from_s: float
    until_s: float
    rows: tuple[UsageRow, ...]
