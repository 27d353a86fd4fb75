"""A claim list in memory, which all coordinators of a history share."""

from elastane.claims.place import ClaimsUnavailable
from elastane.claims.records import HeldSlot, Record
from tests.simulator.clock import Clock


class SimClaimList:
    """A claim list that may not answer for a while, as a shared directory may.

    Args:
        clock: the clock of the history.

    Attributes:
        held: the held slots, as `elastane.claims.claim_list.ClaimList` returns them.
        away_until_s: until then no call is answered.
        forgetful: the probability that a claim takes effect, but its answer is lost.
    """

    where = "the simulated claim list"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.held: list[HeldSlot] = []
        self.away_until_s = 0.0
        self.forgetful = 0.0

    def claim(self, slot: int, record: Record) -> HeldSlot:
        """Claim a slot, and return its holder."""
        self._answer()
        if slot == len(self.held) + 1:
            self.held.append(HeldSlot(slot, record))
            if self._clock.random.random() < self.forgetful:
                raise ClaimsUnavailable("the answer of the claim list was lost")
        return self.held[slot - 1]

    def read(self, first_slot: int = 1) -> tuple[HeldSlot, ...]:
        self._answer()
        return tuple(self.held[first_slot - 1 :])

    @property
    def is_away(self) -> bool:
        """Nothing is answered now."""
        return self._clock.now < self.away_until_s

    def _answer(self) -> None:
        if self.is_away:
            raise ClaimsUnavailable("the claim list does not answer")
