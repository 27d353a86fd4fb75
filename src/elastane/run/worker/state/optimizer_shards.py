"""The interface of a worker's optimizer state, which `WholeOptimizer` and `ShardedOptimizer` implement."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import optim

from elastane.run.worker.split_adamw import SplitAdamW
from elastane.run.worker.state.model_layout import Extent, Piece

ELEMENTWISE: tuple[type[optim.Optimizer], ...] = (
    optim.ASGD,
    optim.Adadelta,
    optim.Adagrad,
    optim.Adam,
    optim.AdamW,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.RMSprop,
    optim.Rprop,
    optim.SGD,
    SplitAdamW,
)

MOMENTS = 2
SPLIT_BYTES = 10
"""Two moments in float32, and the lower 16 bits of a weight."""


def updates_elementwise(optimizer: optim.Optimizer) -> bool:
    """Return whether the optimizer surely updates each parameter independently, as all of torch do.

    A hook of the script may couple parameters, such as one that clips the norm of the whole gradient.
    """
    has_hooks = bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
    kind = type(optimizer)
    return (kind is SplitAdamW or kind.__module__.partition(".")[0] == "torch") and not has_hooks


def estimate_state_bytes(elements: int, element_bytes: int) -> int:
    """Return the bytes of optimizer state of some elements with `SplitAdamW`, the most of the usual ones.

    Args:
        elements: their number.
        element_bytes: of each.
    """
    return elements * (SPLIT_BYTES if element_bytes == torch.bfloat16.itemsize else MOMENTS * element_bytes)


class OptimizerShards(Protocol):
    """The optimizer state of a worker, whole or in blocks; a unit is the smallest part that moves."""

    units: int

    @property
    def unit_bytes(self) -> tuple[int, ...]:
        """An estimate of each unit's optimizer state in bytes; 0 for the last one, the replicated state."""
        ...

    def apply(
        self, sums: tuple[torch.Tensor, ...], held: frozenset[int], untouched: frozenset[int], scale: float
    ) -> None:
        """Step the optimizer on the units held."""
        ...

    def skip(self, held: frozenset[int]) -> None:
        """Skip a step: update nothing."""
        ...

    def list_blocks(self, units: Iterable[int]) -> Iterator[int]:
        """Return the blocks with values of these units, with repetitions; the replicated state has none."""
        ...

    def holds_buffers(self, block: int, held: frozenset[int]) -> bool: ...

    def view_values(self, unit: int, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor: ...

    def read_state(self, unit: int) -> dict[str, Any]: ...

    def set_state(self, unit: int, state: dict[str, Any]) -> None: ...

    def read_piece_state(self, block: int, piece: Piece) -> dict[str, Any]:
        """Return the state of one piece of a block; elementwise entries are 1-D in memory order."""
        ...

    def is_elementwise(self, piece: Piece, key: str) -> bool:
        """Return whether an entry has one element for each element of the piece."""
        ...

    def list_pieces(self, unit: int) -> list[tuple[Extent, Piece]]:
        """Return the pieces of the model's tensors that form a unit."""
        ...

    def allocate_state(
        self,
        piece: Piece,
        elementwise: Mapping[str, torch.dtype],
        others: Mapping[str, torch.Tensor],
        plain: Mapping[str, Any],
    ) -> dict[str, torch.Tensor]:
        """Allocate state for a piece, to be filled in.

        Args:
            elementwise: the data types of the elementwise entries, by key.
            others: the other tensors, dense; they become part of the state.
            plain: the entries that are not tensors.

        Returns:
            The memory of each tensor, 1-D.
        """
        ...
