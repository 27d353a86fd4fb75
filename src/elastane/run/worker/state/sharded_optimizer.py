"""A copy of the user's optimizer that works on the pieces of parameters in the blocks that a worker holds.

It has the same class and the same implementation, which must be elementwise.
"""

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import optim

from elastane.common.errors import BadInput
from elastane.run.worker.exhaustion import runs_script
from elastane.run.worker.state.model_layout import Extent, ModelLayout, Piece
from elastane.run.worker.state.optimizer_shards import ELEMENTWISE, estimate_state_bytes
from elastane.run.worker.state.shared_optimizer_state import RefusedState
from elastane.run.worker.state.slot_memory import Sections
from elastane.run.worker.state.tensor_bytes import flatten_dense


class ShardedOptimizer:
    """The optimizer of a worker that holds some blocks; a unit is a block, held by its owner and its backups.

    Raises:
        BadInput: the optimizer is not elementwise, so its result would depend on the borders of blocks.
    """

    def __init__(self, optimizer: optim.Optimizer, layout: ModelLayout, values: Sections) -> None:
        if type(optimizer) not in ELEMENTWISE:
            raise BadInput(
                f"--copies N cannot shard {type(optimizer).__name__}",
                means="it may not update each element independently, so shards could change its result",
                do="use --copies all, or one of " + ", ".join(kind.__name__ for kind in ELEMENTWISE),
            )
        self._user_optimizer = optimizer
        self._layout = layout
        self.units = len(layout.blocks)
        self._pieces: dict[int, list[torch.Tensor]] = {
            block: [layout.extents[p.number].view_flat(values)[p.start : p.stop] for p in pieces]
            for block, pieces in enumerate(layout.pieces)
        }
        self._optimizer = copy.copy(optimizer)
        # A learning-rate scheduler wraps step() of the user's object; the copy must not have the wrapper.
        self._optimizer.__dict__.pop("step", None)
        self._optimizer.state = defaultdict(dict)
        optimizer.state = RefusedState()  # type: ignore[assignment]

    @property
    def unit_bytes(self) -> tuple[int, ...]:
        sizes = [section.dtype.itemsize for section in self._layout.sections]
        return (*(estimate_state_bytes(b.elements, sizes[b.section]) for b in self._layout.blocks), 0)

    @runs_script
    def apply(
        self, sums: tuple[torch.Tensor, ...], held: frozenset[int], untouched: frozenset[int], scale: float
    ) -> None:
        """Step on the pieces of the held blocks; free the state of blocks that the worker has given away."""
        self._forget(held)
        groups: list[list[torch.Tensor]] = [[] for _ in self._user_optimizer.param_groups]
        for piece, values in self._list_held_pieces(held):
            if piece.number not in untouched:
                gradient = self._layout.extents[piece.number].view_flat(sums)
                values.grad = gradient[piece.start : piece.stop]
                groups[self._layout.groups[piece.number]].append(values)
        gradients = [values.grad for pieces in groups for values in pieces if values.grad is not None]
        if scale != 1.0 and gradients:
            torch._foreach_mul_(gradients, scale)
        self._optimizer.param_groups = [
            {**group, "params": pieces}
            for group, pieces in zip(self._user_optimizer.param_groups, groups, strict=True)
        ]
        if isinstance(self._optimizer, optim.Adagrad):
            self._begin_state(self._optimizer)
        self._optimizer.step()
        for pieces in groups:
            for values in pieces:
                values.grad = None

    @staticmethod
    def _begin_state(optimizer: optim.Adagrad) -> None:
        """Begin the state of new pieces; in torch 2.11 Adagrad does so in its constructor alone."""
        start = optimizer.defaults["initial_accumulator_value"]
        for group in optimizer.param_groups:
            for values in group["params"]:
                if not optimizer.state[values]:
                    fresh = optim.Adagrad([values], initial_accumulator_value=start, fused=group["fused"])
                    optimizer.state[values] = fresh.state[values]

    def skip(self, held: frozenset[int]) -> None:
        """Skip a step after an overflow; free the state of blocks that the worker has given away."""
        self._forget(held)

    def _list_held_pieces(self, held: frozenset[int]) -> Iterator[tuple[Piece, torch.Tensor]]:
        for block in sorted(held):
            if block < self.units:
                yield from zip(self._layout.pieces[block], self._pieces[block], strict=True)

    def _forget(self, held: frozenset[int]) -> None:
        for block in range(self.units):
            if block not in held:
                for values in self._pieces[block]:
                    self._optimizer.state.pop(values, None)

    def holds_buffers(self, block: int, held: frozenset[int]) -> bool:
        return block in held

    def list_blocks(self, units: Iterable[int]) -> Iterator[int]:
        return (unit for unit in units if unit < self.units)

    def view_values(self, unit: int, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self._layout.view_block(tensors, unit)

    def read_state(self, unit: int) -> dict[str, Any]:
        return {
            f"{i}/{key}": entry
            for i, values in enumerate(self._pieces[unit])
            for key, entry in self._optimizer.state.get(values, {}).items()
        }

    def set_state(self, unit: int, state: dict[str, Any]) -> None:
        for key, entry in state.items():
            piece, name = key.split("/", 1)
            copied = entry.clone() if isinstance(entry, torch.Tensor) else entry
            self._optimizer.state[self._pieces[unit][int(piece)]][name] = copied

    def read_piece_state(self, block: int, piece: Piece) -> dict[str, Any]:
        return dict(self._optimizer.state.get(self._view_piece(block, piece), {}))

    def _view_piece(self, block: int, piece: Piece) -> torch.Tensor:
        return self._pieces[block][self._layout.pieces[block].index(piece)]

    def _find_block(self, piece: Piece) -> int:
        return next(b for b in self._layout.parameter_blocks[piece.number] if piece in self._layout.pieces[b])

    def is_elementwise(self, piece: Piece, key: str) -> bool:
        entry = self._optimizer.state[self._view_piece(self._find_block(piece), piece)][key]
        return isinstance(entry, torch.Tensor) and entry.dim() > 0

    def list_pieces(self, unit: int) -> list[tuple[Extent, Piece]]:
        layout = self._layout
        return [
            *((layout.extents[piece.number], piece) for piece in layout.pieces[unit]),
            *((layout.buffer_extents[piece.number], piece) for piece in layout.buffer_pieces[unit]),
        ]

    def allocate_state(
        self,
        piece: Piece,
        elementwise: Mapping[str, torch.dtype],
        others: Mapping[str, torch.Tensor],
        plain: Mapping[str, Any],
    ) -> dict[str, torch.Tensor]:
        values = self._view_piece(self._find_block(piece), piece)
        state: dict[str, Any] = dict(others)
        state |= {key: torch.empty_like(values, dtype=dtype) for key, dtype in elementwise.items()}
        self._optimizer.state[values] = {**state, **plain}
        return {key: flatten_dense(tensor) for key, tensor in state.items()}
