"""What jobs use of the pools, and what it costs."""

from typing import Literal, TypeAlias

from elastane.api.bodies import AnswerBody
from elastane.api.bounds import Amount, Position


class Occupancy(AnswerBody, frozen=True, kw_only=True):
    """A pool, and how much of it is in use, by all teams together.

    Args:
        pool: its name.
        device: kind.
        devices: that there are, as a plan counts them.
        leaving: how many of those are on nodes that are drained or will be taken away.
        reserved: how many the calendar has, from the announcement on.
        used: by jobs, those on their way out included.
        spot: they can be taken away with a short notice.
        price: of a device for an hour, now.
        site: region or data centre.
        nodes: that engines have seen in it; 0: its devices are those that are declared.
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
        """Devices that nobody uses and that jobs may have.

        Jobs leave what goes or is reserved as soon as they can: what they use counts as if it were elsewhere.
        """
        return max(0, self.devices - self.leaving - self.reserved - self.used)


Terms: TypeAlias = Literal["owned", "borrowed", "spot"]
"""On which terms a device is used: the team or a cohort of it owns it, somebody else does, or it is spot."""


class Use(AnswerBody, frozen=True, kw_only=True):
    """Devices that a job uses now, and what one of them costs for an hour."""

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
    """What was used between two moments."""

    from_s: float
    until_s: float
    rows: tuple[UsageRow, ...]
