"""The claims of a run's unplanned generations by the coordinator of one term."""

import logging
import time
from collections.abc import Iterable

from elastane.api.membership import WorkerId
from elastane.claims.claim_list import ClaimList
from elastane.claims.history import find_next_slot, find_superseding_term, list_generations
from elastane.claims.place import ClaimsUnavailable
from elastane.claims.records import GenerationClaim, make_nonce
from elastane.claims.terms import OwnTerm, Superseded

READ_AGAIN_S = 0.5

logger = logging.getLogger(__name__)


class GenerationClaims:
    """Claims unplanned generations for one term, and reads those of earlier terms.

    Args:
        claims: the list; give it a short time limit.
        own_term: the term of this process.
    """

    def __init__(self, claims: ClaimList, own_term: OwnTerm) -> None:
        self._claims, self._own_term = claims, own_term
        self._record: GenerationClaim | None = None

    def read(self) -> tuple[GenerationClaim, ...]:
        """Return the claimed generations, in order; wait for the list as long as it takes.

        A coordinator that does not know them must not act: one of them may be at work.
        """
        logged = False
        while True:
            try:
                return list_generations(self._claims.read())
            except ClaimsUnavailable as error:
                if not logged:
                    logger.warning("term %d waits for its claim list: %s", self._own_term.number, error)
                logged = True
            time.sleep(READ_AGAIN_S)

    def claim(self, number: int, members: Iterable[WorkerId]) -> Superseded | None:
        """Claim the next slot for a generation.

        After an error it may be repeated with the same generation; the earlier claim may have taken effect.

        Args:
            number: of the generation.
            members: its workers.

        Returns:
            None if the generation holds a slot and this term is in charge; otherwise the reason to end.

        Raises:
            ClaimsUnavailable: the list has not answered in time; the outcome is unknown.
            ClaimsUnusable: the place cannot keep a claim list.
        """
        term, record = self._own_term.record, self._keep_record(number, tuple(members))
        held = self._claims.read()
        while True:
            if (other := find_superseding_term(held, term)) is not None:
                return Superseded(term.number, other, self._claims.where)
            if any(one.holds(record) for one in held):
                return None
            if not any(one.holds(term) for one in held):
                raise ClaimsUnavailable(
                    f"term {term.number} is not in the claim list {self._claims.where} yet",
                    means="its generations would not count",
                    do="claim the term first",
                )
            held = (*held, self._claims.claim(find_next_slot(held), record))

    def _keep_record(self, number: int, members: tuple[WorkerId, ...]) -> GenerationClaim:
        """Return the record of a generation, with the same nonce each time."""
        record = self._record
        if record is None or (record.number, record.members) != (number, members):
            record = GenerationClaim(
                number=number, term=self._own_term.number, members=members, nonce=make_nonce()
            )
            self._record = record
        return record
