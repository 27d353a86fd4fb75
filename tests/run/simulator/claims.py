"""A claim list in memory, which all coordinators of a history share."""

from collections.abc import Iterable

from elastane.run.machines.claims.place import ClaimsUnavailable
from elastane.run.machines.claims.records import HeldSlot, Record
from elastane.run.nouns.membership import NodeName
from tests.run.simulator.clock import Clock

LATE_SHARE = 0.5
"""The share of claims that a slow list does not answer in time."""
LATEST_S = 8.0
"""The longest time after which such a claim takes effect."""


class SimClaimList:
    """A claim list that may not answer for a while, as a shared directory may.

    Args:
        clock: the clock of the history.

    Attributes:
        held: the held slots, as `elastane.run.machines.claims.claim_list.ClaimList` returns them.
        away_until_s: until then no call is answered, by the node that calls.
        forgetful: the probability that a claim takes effect, but its answer is lost.
        slow_until_s: until then some claims are not answered in time, and take effect later if they can.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.held: list[HeldSlot] = []
        self.away_until_s: dict[NodeName, float] = {}
        self.forgetful = 0.0
        self.slow_until_s = 0.0

    def hide(self, nodes: Iterable[NodeName], until_s: float) -> None:
        """Answer some nodes no more, at least until a time."""
        self.away_until_s |= {node: max(until_s, self.away_until_s.get(node, 0.0)) for node in nodes}

    def claim(self, slot: int, record: Record) -> HeldSlot:
        """Claim a slot, and return its holder."""
        if self._clock.now < self.slow_until_s and self._clock.random.random() < LATE_SHARE:
            late_s = self._clock.random.uniform(0.2, LATEST_S)

            def take() -> None:
                self._take(slot, record)

            self._clock.schedule_after(late_s, take)
            raise ClaimsUnavailable("the claim list has not answered in time")
        if self._take(slot, record) and self._clock.random.random() < self.forgetful:
            raise ClaimsUnavailable("the answer of the claim list was lost")
        return self.held[slot - 1]

    def _take(self, slot: int, record: Record) -> bool:
        """Let a record hold a slot if it is the next free one; return whether it was."""
        is_free = slot == len(self.held) + 1
        if is_free:
            self.held.append(HeldSlot(slot, record))
        return is_free

    def is_away(self, node: NodeName) -> bool:
        """Return whether no call of a node is answered now."""
        return self._clock.now < self.away_until_s.get(node, 0.0)


class NodeClaimList:
    """The claim list as one node reaches it.

    Args:
        claims: the list.
        node: the name of the node.
    """

    where = "the simulated claim list"

    def __init__(self, claims: SimClaimList, node: NodeName) -> None:
        self._claims, self._node = claims, node

    def claim(self, slot: int, record: Record) -> HeldSlot:
        self._answer()
        return self._claims.claim(slot, record)

    def read(self, first_slot: int = 1) -> tuple[HeldSlot, ...]:
        self._answer()
        return tuple(self._claims.held[first_slot - 1 :])

    def _answer(self) -> None:
        if self._claims.is_away(self._node):
            raise ClaimsUnavailable("the claim list does not answer")
