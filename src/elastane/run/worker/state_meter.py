"""Norms and digests of a worker's blocks, which its votes carry."""

from functools import cache
from itertools import islice

import torch

from elastane.run.protocol import events
from elastane.run.protocol.layout import REPLICATED_BLOCK
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.state.training_state import TrainingState

ROW = 1024
"""The number of elements in a row of `_norm_parts`."""


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
        return events.Measured(request, squares, pairs, self._state.replicated.digest_parts())

    def _square_sums(self, blocks: tuple[int, ...]) -> dict[int, float]:
        slots = self._gradients.slots
        trained = [block for block in blocks if not slots.layout.is_buffers(block)]
        with slots.memory.use_side_stream():
            squares = compute_squared_norms([slots.memory.find_sum(block) for block in trained])
        return dict(zip(trained, squares, strict=True))

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


def compute_squared_norms(tensors: list[torch.Tensor]) -> list[float]:
    """Return the sum of the squares of each 1-D tensor; its bits do not depend on the other tensors.

    On a GPU one kernel computes all in float64. On the CPU rows are summed in their own type, but at least
    in float32, and the rows' sums in float64. That is four times as fast there as float64 throughout, and
    more exact than one sum in float32.
    """
    if not tensors:
        return []
    if tensors[0].is_cuda:
        # A chunk of a tensor is a thread block, and a tensor's chunks are summed in their own order.
        on_device = torch._foreach_norm(tensors, 2, dtype=torch.float64)
        return [norm * norm for norm in torch.stack(on_device).tolist()]
    parts = [_norm_parts(elements) for elements in tensors]
    # Read all at once.
    norms = [norm for part in parts for norm in part]
    numbers = iter(torch.stack(norms).tolist() if norms else ())
    return [float(sum(norm * norm for norm in islice(numbers, len(part)))) for part in parts]


def _norm_parts(elements: torch.Tensor) -> list[torch.Tensor]:
    """Return the norm of the rows of a tensor and that of the rest, in float64; none of what it lacks."""
    whole = elements.numel() - elements.numel() % ROW
    norms = []
    if whole:
        rows = elements[:whole].view(-1, ROW)
        kind = _choose_row_type(elements.dtype)
        norms.append(
            torch.linalg.vector_norm(torch.linalg.vector_norm(rows, dim=1, dtype=kind), dtype=torch.float64)
        )
    if whole < elements.numel():
        norms.append(torch.linalg.vector_norm(elements[whole:], dtype=torch.float64))
    return norms


@cache
def _choose_row_type(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
