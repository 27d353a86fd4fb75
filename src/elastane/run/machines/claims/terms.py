"""The term of one coordinator: claimed before it acts, and compared with later ones while it acts."""

import logging
import os
import socket
import time

import msgspec

from elastane.common.errors import ElastaneError
from elastane.common.exit_codes import ExitCode
from elastane.run.connections.endpoint import CoordinatorEndpoint
from elastane.run.machines.claims.claim_list import ClaimList
from elastane.run.machines.claims.history import (
    find_newest_term,
    find_next_slot,
    find_superseding_term,
    number_next_term,
)
from elastane.run.machines.claims.place import ClaimsUnusable
from elastane.run.machines.claims.records import HeldSlot, TermClaim, make_nonce
from elastane.run.nouns.membership import NodeName

SUPERSEDED_CODE = 75
"""The exit code of a coordinator that has learned of a higher term. No other code of ours is this one."""
REFUSED_CODE = 77
"""The exit code of a coordinator that the claim list refuses the first claim of a run. No other one is 77."""

logger = logging.getLogger(__name__)


class Superseded(ElastaneError):
    """Another coordinator is in charge of the run.

    Args:
        number: of the term of this process.
    """

    exit_code = ExitCode.FAILED

    def __init__(self, number: int, other: TermClaim, where: str) -> None:
        super().__init__(
            f"the coordinator of term {number} ends: {other.claimant} has claimed term {other.number} in the "
            f"claim list {where}",
            means="another coordinator is in charge of this run, and this one may not change anything now",
            do="nothing if the other one serves the run; otherwise end all its processes and resume it",
        )


class TermOrder(msgspec.Struct, frozen=True):
    """The order to a waiting coordinator to begin.

    Args:
        term: the lowest number that its term may have.
        silent_s: how long all agents of the run were without a coordinator.
        attempt: how often the run had been resumed when the attempt of its agent began.
        answering: the other machines with agents that answered this one's.
        has_left: the machine in charge has left the run, and has handed over.
    """

    term: int
    silent_s: float = 0.0
    attempt: int = 0
    answering: tuple[NodeName, ...] = ()
    has_left: bool = False


class OwnTerm:
    """The term of this process, in a claim list.

    On one machine it acts without a claim if the list cannot be written, for example on a full disk, and
    claims later. Until then only the lock on the run directory keeps other coordinators away.

    Args:
        claims: the list; give it a short time limit.
        at_least: the lowest number that the term may have.
        endpoint: of this coordinator, in a run on several machines.

    Attributes:
        claimed: this term holds a slot of the list.
        answered: the list answered the last time.
        waited: the list did not answer when this term was first to be claimed.
        refusal: why trying again cannot help, as the list said the last time; None: it did not say so.
        before: the term that was in charge before this one; None: there was none, or the list was away.
    """

    def __init__(self, claims: ClaimList, at_least: int, endpoint: CoordinatorEndpoint | None = None) -> None:
        self._claims = claims
        self._endpoint = endpoint
        self._at_least = at_least
        self._record = self._make_record(at_least)
        self.claimed = self.answered = self.waited = False
        self.refusal: ClaimsUnusable | None = None
        self.before: TermClaim | None = None
        self._checked_slot = 1

    @property
    def record(self) -> TermClaim:
        """The claim of this term; its number may still grow until it is claimed."""
        return self._record

    @property
    def number(self) -> int:
        return self._record.number

    @property
    def is_next(self) -> bool:
        """No other coordinator has claimed a term since this one was ordered."""
        return self.number == self._at_least

    def claim(self) -> int:
        """Claim the next term and return its number, which is then fixed.

        If the list is away, the number is the lowest one; ``claimed`` is False then.
        """
        try:
            held = self._claims.read()
            # An earlier claim of unknown outcome may hold a slot.
            own = next((i for i, held_slot in enumerate(held) if held_slot.holds(self._record)), None)
            self.claimed = own is not None
            self.before = find_newest_term(held[:own])
            while not self.claimed:
                number = number_next_term(held, self.number)
                if number != self.number:
                    self._record = self._make_record(number)
                self.before = find_newest_term(held)
                held = self._claim_next(held)
        except ElastaneError as error:
            self.answered = False
            self.refusal = error if isinstance(error, ClaimsUnusable) else None
            if not self.waited:
                how = "begins without a claim" if self._endpoint is None else "waits for its claim"
                logger.warning("term %d %s: %s", self.number, how, error)
            self.waited = True
        else:
            self.answered, self.refusal = True, None
        return self.number

    def check(self) -> Superseded | None:
        """Compare the term with the list, and claim it if that was not possible before.

        While the list is away nothing is compared, and the term goes on.

        Returns:
            The reason to end; None: this term is in charge.
        """
        try:
            held = self._claims.read()
            while (other := find_superseding_term(held, self._record)) is None and not self.claimed:
                held = self._claim_next(held)
        except ElastaneError:
            self.answered = False
            return None
        self.answered = True
        return None if other is None else Superseded(self.number, other, self._claims.where)

    def is_in_charge(self) -> bool:
        """Return whether the list answers, and holds this term and no later one."""
        if not self.claimed:
            return False
        try:
            # A later term has a later slot than all that were read before.
            held = self._claims.read(self._checked_slot)
        except ElastaneError:
            return False
        if find_superseding_term(held, self._record) is not None:
            return False
        self._checked_slot = max((held_slot.slot for held_slot in held), default=self._checked_slot)
        return True

    def _claim_next(self, held: tuple[HeldSlot, ...]) -> tuple[HeldSlot, ...]:
        """Claim the slot after the held ones; return them with its holder."""
        # An earlier claim of unknown outcome may hold a slot.
        if any(held_slot.holds(self._record) for held_slot in held):
            self.claimed = True
            return held
        holder = self._claims.claim(find_next_slot(held), self._record)
        self.claimed = holder.holds(self._record)
        return (*held, holder)

    def _make_record(self, number: int) -> TermClaim:
        claimant = f"{socket.gethostname()}:{os.getpid()}"
        endpoint = None if self._endpoint is None else msgspec.structs.replace(self._endpoint, term=number)
        return TermClaim(
            number=number, claimant=claimant[:256], endpoint=endpoint, nonce=make_nonce(), time=time.time()
        )
