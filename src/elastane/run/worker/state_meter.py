"""Norms and digests of a worker's blocks, which its votes carry."""

from elastane.run.protocol import events
from elastane.run.protocol.layout import REPLICATED_BLOCK
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.state.square_sums import sum_squares
from elastane.run.worker.state.training_state import TrainingState


class StateMeter:
    """Measures one worker's part of the state.

    Args:
        member: knows which optimizer state this worker has.
        measure_norms: votes carry norms, for clipping or for a scaler.
    """

    def __init__(
        self, member: MemberMachine, gradients: Gradients, state: TrainingState, *, measure_norms: bool
    ) -> None:
        self._member, self._gradients, self._state = member, gradients, state
        self._measure_norms = measure_norms

    def measure(self, request: int, norms: tuple[int, ...], digests: tuple[int, ...]) -> events.Measured:
        """Return squared norms of some blocks' sums, and digests of the state of other blocks.

        Args:
            request: the number of the request; the answer carries it.
            norms: the blocks of which to return norms.
            digests: the blocks of which to return digests.
        """
        squares = self._square_sums(norms) if self._measure_norms else {}
        pairs = {block: self._digest(block) for block in digests}
        if digests and (replicated := self._state.replicated.digest()) != ("", ""):
            pairs[REPLICATED_BLOCK] = replicated
        copies = self._state.digest_copies() if digests else {}
        return events.Measured(request, squares, pairs, self._state.replicated.digest_parts(), copies)

    def _square_sums(self, blocks: tuple[int, ...]) -> dict[int, tuple[float, ...]]:
        slots = self._gradients.slots
        trained = [block for block in blocks if not slots.layout.is_buffers(block)]
        with slots.memory.use_side_stream():
            rows = [slots.layout.list_rows(slots.memory.find_sum(block), block) for block in trained]
            return dict(zip(trained, sum_squares(rows), strict=True))

    def is_unchanged(self, blocks: tuple[int, ...]) -> bool:
        """Return whether the blocks and the replicated state equal those that all members agreed on last.

        This worker has the optimizer state of the blocks, some perhaps beyond its share.
        """
        agreed = self._member.outcome.digests if self._member.outcome is not None else {}
        pairs = {block: self._state.digest(block) for block in blocks}
        if (replicated := self._state.replicated.digest()) != ("", ""):
            pairs[REPLICATED_BLOCK] = replicated
        return all(agreed.get(block) == pair for block, pair in pairs.items())

    def _digest(self, block: int) -> tuple[str, str]:
        values, states = self._state.digest(block)
        return values, states if self._member.keeps_state_of(block) else ""
