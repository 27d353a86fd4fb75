"""Norms and digests of a worker's blocks, which its votes carry."""

import torch

from elastane.protocol import events
from elastane.protocol.layout import REPLICATED_BLOCK
from elastane.protocol.member_machine import MemberMachine
from elastane.runtime.state.gradients import Gradients
from elastane.runtime.state.training_state import TrainingState

ROW = 1024
"""The number of elements in a row of `compute_squared_norm`."""


class StateMeter:
    """Measures one worker's part of the state.

    Args:
        member: knows which optimizer state this worker has.
        gradients: the slots and sums.
        state: the values and the optimizer state.
        measure_norms: votes carry norms, for clipping or for a scaler.
    """

    def __init__(
        self, member: MemberMachine, gradients: Gradients, state: TrainingState, *, measure_norms: bool
    ) -> None:
        self._member, self._gradients, self._state = member, gradients, state
        self._measure_norms = measure_norms

    def measure(self, ticket: int, norms: tuple[int, ...], digests: tuple[int, ...]) -> events.Measured:
        """Return squared norms of some blocks' sums, and digests of the state of other blocks.

        Args:
            ticket: the ticket of the request; the answer carries it.
            norms: the blocks of which to return norms.
            digests: the blocks of which to return digests.
        """
        layout = self._gradients.layout
        squares: dict[int, float] = {}
        if self._measure_norms:
            for block in norms:
                if not layout.is_buffers(block):
                    sums = layout.view_block(self._gradients.slots.sums, block)
                    squares[block] = compute_squared_norm(sums)
        pairs = {block: self._digest(block) for block in digests}
        if digests and (replicated := self._state.replicated.digest()) != ("", ""):
            pairs[REPLICATED_BLOCK] = replicated
        return events.Measured(ticket, squares, pairs, self._state.replicated.digest_parts())

    def is_unchanged(self, blocks: tuple[int, ...]) -> bool:
        """Return whether the blocks and the replicated state equal those that all members agreed on last."""
        agreed = self._member.outcome.digests if self._member.outcome is not None else {}
        pairs = {block: self._digest(block) for block in blocks}
        if (replicated := self._state.replicated.digest()) != ("", ""):
            pairs[REPLICATED_BLOCK] = replicated
        return all(agreed.get(block) == pair for block, pair in pairs.items())

    def _digest(self, block: int) -> tuple[str, str]:
        values, states = self._state.digest(block)
        return values, states if self._member.keeps_state_of(block) else ""


def compute_squared_norm(elements: torch.Tensor) -> float:
    """Return the sum of the squares of a 1-D tensor.

    Rows are summed in their own type, but at least in float32, and the rows' sums in float64. That is four
    times as fast as float64 throughout, and more exact than one sum in float32.
    """
    kind = torch.promote_types(elements.dtype, torch.float32)
    whole = elements.numel() - elements.numel() % ROW
    rows = torch.linalg.vector_norm(elements[:whole].view(-1, ROW), dim=1, dtype=kind)
    norms = [torch.linalg.vector_norm(part, dtype=torch.float64).item() for part in (rows, elements[whole:])]
    return float(sum(norm * norm for norm in norms))
