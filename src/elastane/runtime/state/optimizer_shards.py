"""The optimizer state of a worker: the user's optimizer on whole parameters, or a copy of it on blocks.

``WholeOptimizer`` supports any optimizer that updates each parameter independently. ``ShardedOptimizer``
supports elementwise optimizers. It runs the same class, with the same implementation, on the pieces of
parameters in the blocks that the worker holds.
"""

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import optim

from elastane.api.errors import BadInput
from elastane.runtime.exhaustion import runs_script
from elastane.runtime.state.model_layout import Extent, ModelLayout, Piece
from elastane.runtime.state.placement import Sections
from elastane.runtime.state.shared_optimizer_state import RefusedState, SharedOptimizerState

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
)


def is_of_torch(optimizer: optim.Optimizer) -> bool:
    """Return whether the optimizer is one of torch's, all of which update each parameter independently."""
    return type(optimizer).__module__.partition(".")[0] == "torch"


def _refuse_unsupported(optimizer: optim.Optimizer) -> None:
    if isinstance(optimizer, optim.LBFGS):
        raise BadInput(
            "LBFGS evaluates the loss several times a step",
            means="a step of Elastane has one forward and one backward pass per virtual rank",
            do="use an optimizer whose step() needs no closure",
        )
    if isinstance(optimizer, optim.SparseAdam):
        raise BadInput(
            "SparseAdam takes sparse gradients only",
            means="gradients of virtual ranks are summed in dense blocks",
            do="use Adam or AdamW; sparse gradients of an embedding are made dense",
        )


def _copy_into(spare: object, entry: object, parameter: torch.Tensor) -> object:
    """Return the entry, copied into the spare memory if it fits there."""
    if not isinstance(entry, torch.Tensor):
        return entry
    if isinstance(spare, torch.Tensor) and (spare.shape, spare.dtype) == (entry.shape, entry.dtype):
        return spare.copy_(entry)
    if entry.shape == parameter.shape:
        # Fused kernels require that state has the memory format of its parameter.
        like = torch.empty_strided(entry.shape, parameter.stride(), dtype=entry.dtype, device=entry.device)
        return like.copy_(entry)
    return entry.clone()


def _fits(entry: object, parameter: torch.Tensor) -> bool:
    """Return whether the state has one element for each element of the parameter."""
    return isinstance(entry, torch.Tensor) and entry.shape == parameter.shape and entry.dim() > 0


def _flatten(dense: torch.Tensor) -> torch.Tensor:
    """Return all elements of a dense tensor, 1-D, in memory order."""
    return dense.as_strided((dense.numel(),), (1,), dense.storage_offset())


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
            piece: a piece of a trained parameter.
            elementwise: the data types of the elementwise entries, by key.
            others: the other tensors, dense; they become part of the state.
            plain: the entries that are not tensors.

        Returns:
            The memory of each tensor, 1-D.
        """
        ...


class WholeOptimizer:
    """The optimizer of a worker that holds all state; a unit is a parameter."""

    def __init__(self, optimizer: optim.Optimizer, layout: ModelLayout) -> None:
        _refuse_unsupported(optimizer)
        self._optimizer = optimizer
        self._layout = layout
        self.units = len(layout.parameters)
        self._views: list[torch.Tensor] | None = None
        self.shared = SharedOptimizerState(optimizer)
        self._spare: dict[torch.Tensor, dict[str, Any]] = {}

    @property
    def unit_bytes(self) -> tuple[int, ...]:
        """An estimate of each unit's optimizer state in bytes: twice its values, as with Adam."""
        return (*(2 * p.numel() * p.element_size() for p in self._layout.parameters), 0)

    @runs_script
    def apply(
        self, sums: tuple[torch.Tensor, ...], held: frozenset[int], untouched: frozenset[int], scale: float
    ) -> None:
        """Step the user's optimizer, with views of the sums as gradients."""
        if self._views is None:
            self._views = [extent.view(sums) for extent in self._layout.extents]
        if len(held) > self.units:
            self._spare.clear()
        due = [n for n in range(self.units) if n in held and n not in untouched]
        gradients = [self._views[n] for n in due]
        if scale != 1.0:
            torch._foreach_mul_(gradients, scale)
        for n, gradient in zip(due, gradients, strict=True):
            self._layout.parameters[n].grad = gradient
        self._optimizer.step()
        for n in due:
            self._layout.parameters[n].grad = None

    def skip(self, held: frozenset[int]) -> None:
        """Skip a step after an overflow of its gradient."""
        if len(held) > self.units:
            self._spare.clear()

    @runs_script
    def rehearse(self, values: tuple[torch.Tensor, ...], spare: tuple[torch.Tensor, ...]) -> None:
        """Step once with zero gradients and a learning rate of zero; keep the allocated state for reuse."""
        before = self.shared.snapshot()
        kept = [tensor.clone() for tensor in values]
        for group in self._optimizer.param_groups:
            group.update({key: 0.0 for key in ("lr", "weight_decay") if isinstance(group.get(key), float)})
        for parameter, extent in zip(self._layout.parameters, self._layout.extents, strict=True):
            if parameter.requires_grad:
                parameter.grad = extent.view(spare)
        type(self._optimizer).step(self._optimizer)
        for parameter in self._layout.parameters:
            parameter.grad = None
        for tensor, was in zip(values, kept, strict=True):
            tensor.copy_(was)
        made = before.restore()
        if not self._optimizer.state:
            self._spare = made

    def holds_buffers(self, block: int, held: frozenset[int]) -> bool:  # noqa: ARG002 - all workers do
        return True

    def list_blocks(self, units: Iterable[int]) -> Iterator[int]:
        return (block for unit in units if unit < self.units for block in self._layout.parameter_blocks[unit])

    def view_values(self, unit: int, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self._layout.extents[unit].view_flat(tensors)

    def read_state(self, unit: int) -> dict[str, Any]:
        return dict(self._optimizer.state.get(self._layout.parameters[unit], {}))

    def set_state(self, unit: int, state: dict[str, Any]) -> None:
        parameter = self._layout.parameters[unit]
        spare: dict[str, Any] = self._spare.pop(parameter, {})
        self._optimizer.state[parameter] = {
            key: _copy_into(spare.get(key), entry, parameter) for key, entry in state.items()
        }

    def read_piece_state(self, block: int, piece: Piece) -> dict[str, Any]:  # noqa: ARG002 - a piece is enough
        parameter = self._layout.parameters[piece.number]
        extent = self._layout.extents[piece.number]
        return {
            key: extent.flatten(entry)[piece.start : piece.stop] if _fits(entry, parameter) else entry
            for key, entry in self._optimizer.state.get(parameter, {}).items()
        }

    def is_elementwise(self, piece: Piece, key: str) -> bool:
        parameter = self._layout.parameters[piece.number]
        return _fits(self._optimizer.state[parameter][key], parameter)

    def list_pieces(self, unit: int) -> list[tuple[Extent, Piece]]:
        extent = self._layout.extents[unit]
        return [(extent, Piece(unit, 0, extent.stop - extent.start))]

    def allocate_state(
        self,
        piece: Piece,
        elementwise: Mapping[str, torch.dtype],
        others: Mapping[str, torch.Tensor],
        plain: Mapping[str, Any],
    ) -> dict[str, torch.Tensor]:
        parameter, extent = self._layout.parameters[piece.number], self._layout.extents[piece.number]
        spare = self._spare.pop(parameter, {})
        made: dict[str, Any] = dict(others)
        for key, dtype in elementwise.items():
            there = spare.get(key)
            fits = isinstance(there, torch.Tensor) and (there.stride(), there.dtype) == (extent.stride, dtype)
            made[key] = (
                there
                if fits
                else torch.empty_strided(extent.shape, extent.stride, dtype=dtype, device=parameter.device)
            )
        self._optimizer.state[parameter] = {**made, **plain}
        return {key: _flatten(tensor) for key, tensor in made.items()}


class ShardedOptimizer:
    """The optimizer of a worker that holds some blocks; a unit is a block, held by its owner and its backups.

    Raises:
        BadInput: the optimizer is not elementwise, so its result would depend on the borders of blocks.
    """

    def __init__(self, optimizer: optim.Optimizer, layout: ModelLayout, values: Sections) -> None:
        if type(optimizer) not in ELEMENTWISE:
            raise BadInput(
                f"--copies N cannot shard {type(optimizer).__name__}",
                means="it is not known to update each element by itself, so shards would change its result",
                do="use --copies all, or one of " + ", ".join(kind.__name__ for kind in ELEMENTWISE),
            )
        self._user = optimizer
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
        return (*(8 * block.elements for block in self._layout.blocks), 0)

    @runs_script
    def apply(
        self, sums: tuple[torch.Tensor, ...], held: frozenset[int], untouched: frozenset[int], scale: float
    ) -> None:
        """Step on the pieces of the held blocks; free the state of blocks that the worker has given away."""
        self._forget(held)
        groups: list[list[torch.Tensor]] = [[] for _ in self._user.param_groups]
        for piece, values in self._held_pieces(held):
            if piece.number not in untouched:
                gradient = self._layout.extents[piece.number].view_flat(sums)
                values.grad = gradient[piece.start : piece.stop]
                groups[self._layout.groups[piece.number]].append(values)
        gradients = [values.grad for pieces in groups for values in pieces if values.grad is not None]
        if scale != 1.0 and gradients:
            torch._foreach_mul_(gradients, scale)
        self._optimizer.param_groups = [
            {**group, "params": pieces} for group, pieces in zip(self._user.param_groups, groups, strict=True)
        ]
        self._optimizer.step()
        for pieces in groups:
            for values in pieces:
                values.grad = None

    def skip(self, held: frozenset[int]) -> None:
        """Skip a step after an overflow; free the state of blocks that the worker has given away."""
        self._forget(held)

    def _held_pieces(self, held: frozenset[int]) -> Iterator[tuple[Piece, torch.Tensor]]:
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
            kept = entry.clone() if isinstance(entry, torch.Tensor) else entry
            self._optimizer.state[self._pieces[unit][int(piece)]][name] = kept

    def read_piece_state(self, block: int, piece: Piece) -> dict[str, Any]:
        return dict(self._optimizer.state.get(self._values_of(block, piece), {}))

    def _values_of(self, block: int, piece: Piece) -> torch.Tensor:
        return self._pieces[block][self._layout.pieces[block].index(piece)]

    def _block_of(self, piece: Piece) -> int:
        return next(b for b in self._layout.parameter_blocks[piece.number] if piece in self._layout.pieces[b])

    def is_elementwise(self, piece: Piece, key: str) -> bool:
        entry = self._optimizer.state[self._values_of(self._block_of(piece), piece)][key]
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
        values = self._values_of(self._block_of(piece), piece)
        made: dict[str, Any] = dict(others)
        made |= {key: torch.empty_like(values, dtype=dtype) for key, dtype in elementwise.items()}
        self._optimizer.state[values] = {**made, **plain}
        return {key: _flatten(tensor) for key, tensor in made.items()}
