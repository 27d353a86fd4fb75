"""The user's optimizer on a worker that holds all optimizer state."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import optim

from elastane.common.errors import BadInput
from elastane.run.worker.exhaustion import runs_script
from elastane.run.worker.state.model_layout import Extent, ModelLayout, Piece
from elastane.run.worker.state.optimizer_shards import estimate_state_bytes
from elastane.run.worker.state.shared_optimizer_state import SharedOptimizerState
from elastane.run.worker.state.tensor_bytes import flatten_dense


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
        """An estimate of each unit's optimizer state in bytes."""
        return (*(estimate_state_bytes(p.numel(), p.element_size()) for p in self._layout.parameters), 0)

    @runs_script
    def apply(
        self, sums: tuple[torch.Tensor, ...], held: frozenset[int], untouched: frozenset[int], scale: float
    ) -> None:
        """Step the user's optimizer, with views of the sums as gradients."""
        if self._views is None:
            self._views = [extent.view(sums) for extent in self._layout.extents]
        if len(held) > self.units:
            self._spare.clear()
        stepped = [number for number in range(self.units) if number in held and number not in untouched]
        gradients = [self._views[number] for number in stepped]
        if scale != 1.0:
            torch._foreach_mul_(gradients, scale)
        for number, gradient in zip(stepped, gradients, strict=True):
            self._layout.parameters[number].grad = gradient
        self._optimizer.step()
        for number in stepped:
            self._layout.parameters[number].grad = None

    def skip(self, held: frozenset[int]) -> None:
        """Skip a step after an overflow of its gradient."""
        if len(held) > self.units:
            self._spare.clear()

    @runs_script
    def rehearse(self, values: tuple[torch.Tensor, ...], spare: tuple[torch.Tensor, ...]) -> None:
        """Step once with zero gradients and a learning rate of zero; keep the allocated state for reuse."""
        before = self.shared.snapshot()
        values_before = [tensor.clone() for tensor in values]
        for group in self._optimizer.param_groups:
            group.update({key: 0.0 for key in ("lr", "weight_decay") if isinstance(group.get(key), float)})
        for parameter, extent in zip(self._layout.parameters, self._layout.extents, strict=True):
            if parameter.requires_grad:
                parameter.grad = extent.view(spare)
        type(self._optimizer).step(self._optimizer)
        for parameter in self._layout.parameters:
            parameter.grad = None
        for tensor, before_step in zip(values, values_before, strict=True):
            tensor.copy_(before_step)
        allocated = before.restore()
        if not self._optimizer.state:
            self._spare = allocated

    def holds_buffers(self, block: int, held: frozenset[int]) -> bool:
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

    def read_piece_state(self, block: int, piece: Piece) -> dict[str, Any]:
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
        state: dict[str, Any] = dict(others)
        for key, dtype in elementwise.items():
            reusable = spare.get(key)
            fits = isinstance(reusable, torch.Tensor) and (reusable.stride(), reusable.dtype) == (
                extent.stride,
                dtype,
            )
            state[key] = (
                reusable
                if fits
                else torch.empty_strided(extent.shape, extent.stride, dtype=dtype, device=parameter.device)
            )
        self._optimizer.state[parameter] = {**state, **plain}
        return {key: flatten_dense(tensor) for key, tensor in state.items()}


def _refuse_unsupported(optimizer: optim.Optimizer) -> None:
    if isinstance(optimizer, optim.LBFGS):
        raise BadInput(
            "LBFGS evaluates the loss several times a step",
            means="a step of Elastane has one forward and one backward pass per virtual rank",
            do="use an optimizer with a step() that needs no closure",
        )
    if isinstance(optimizer, optim.SparseAdam):
        raise BadInput(
            "SparseAdam takes sparse gradients only",
            means="Elastane sums the gradients of virtual ranks in dense blocks",
            do="use Adam or AdamW; Elastane makes sparse gradients of an embedding dense",
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
