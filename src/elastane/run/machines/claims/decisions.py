"""The decisions that at most one coordinator of a run may take, claimed by the coordinator of one term."""

import logging
import time
from collections.abc import Iterable, Mapping

import msgspec

from elastane.run.machines.claims.claim_list import ClaimList
from elastane.run.machines.claims.history import (
    find_claimed_outcome,
    find_next_slot,
    find_superseding_term,
    list_generations,
)
from elastane.run.machines.claims.place import ClaimsUnavailable, ClaimsUnusable
from elastane.run.machines.claims.records import (
    LARGEST_RECORD_BYTES,
    LONGEST_TEXT,
    LONGEST_TRACEBACK,
    Decision,
    GenerationClaim,
    OutcomeClaim,
    make_nonce,
)
from elastane.run.machines.claims.terms import OwnTerm, Superseded
from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.nouns.control import RunOver
from elastane.run.nouns.membership import WorkerId
from elastane.run.nouns.records import RunEnd

READ_AGAIN_S = 0.5

logger = logging.getLogger(__name__)


class DecisionClaims:
    """Claims unplanned generations and the outcome for one term, and reads those of earlier terms.

    Args:
        claims: the list; give it a short time limit.
        first_term: the first term of the present attempt.
    """

    def __init__(self, claims: ClaimList, own_term: OwnTerm, first_term: int = 1) -> None:
        self._claims, self._own_term, self._first_term = claims, own_term, first_term
        self._record: Decision | None = None

    @property
    def is_remote(self) -> bool:
        """Whether the list is a service, which should not be read many times a second."""
        return "://" in self._claims.where

    def is_in_charge(self) -> bool:
        """Return whether the list answers, and holds the term of this process and no later one."""
        return self._own_term.is_in_charge()

    def read(self) -> tuple[tuple[GenerationClaim, ...], OutcomeClaim | None]:
        """Return the claimed generations, in order, and the outcome; wait for the list as long as it takes.

        A coordinator that does not know them must not act: a generation may be at work, or the run over.
        """
        logged = False
        while True:
            try:
                held = self._claims.read()
            except (ClaimsUnavailable, ClaimsUnusable) as error:
                # A token or a password may have expired, and be renewed.
                if not logged:
                    logger.warning("term %d waits for its claim list: %s", self._own_term.number, error)
                logged = True
                time.sleep(READ_AGAIN_S)
            else:
                return list_generations(held), find_claimed_outcome(held, self._first_term)

    def claim_generation(self, number: int, members: Iterable[WorkerId]) -> Superseded | None:
        """Claim the next slot for a generation with this number and these workers; see `claim`."""
        return self.claim(
            GenerationClaim(
                number=number, term=self._own_term.number, members=tuple(members), nonce=make_nonce()
            )
        )

    def claim_outcome(
        self, event: RunEnd, over: RunOver, cause: str, files: Mapping[str, WrittenFile]
    ) -> Superseded | None:
        """Claim the next slot for the outcome of the attempt; see `claim`."""
        record = OutcomeClaim(
            event=event,
            term=self._own_term.number,
            code=over.code,
            why=over.why[:LONGEST_TEXT],
            cause=cause[:LONGEST_TEXT],
            # An error is at the end of its traceback.
            traceback=over.traceback[-LONGEST_TRACEBACK:],
            lost=over.lost,
            files=files,
            nonce=make_nonce(),
        )
        if len(msgspec.json.encode(record)) > LARGEST_RECORD_BYTES:
            record = msgspec.structs.replace(record, files={})
        return self.claim(record)

    def claim(self, decision: Decision) -> Superseded | None:
        """Claim the next slot for a decision.

        After an error it may be repeated with the same decision; the earlier claim may have taken effect.

        Returns:
            None if the decision holds a slot and this term is in charge; otherwise the reason to end.

        Raises:
            ClaimsUnusable: the place cannot keep a claim list.
        """
        term, record = self._own_term.record, self._keep_record(decision)
        held = self._claims.read()
        while True:
            if (other := find_superseding_term(held, term)) is not None:
                return Superseded(term.number, other, self._claims.where)
            if any(held_slot.holds(record) for held_slot in held):
                return None
            if not any(held_slot.holds(term) for held_slot in held):
                raise ClaimsUnavailable(
                    f"term {term.number} is not in the claim list {self._claims.where} yet",
                    means="its decisions would not count",
                    do="claim the term first",
                )
            held = (*held, self._claims.claim(find_next_slot(held), record))

    def _keep_record(self, decision: Decision) -> Decision:
        """Return the record of a decision, with the same nonce each time."""
        last = self._record
        if last is None or msgspec.structs.replace(last, nonce=decision.nonce) != decision:
            self._record = last = decision
        return last
