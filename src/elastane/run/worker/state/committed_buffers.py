"""The committed values of the model's buffers; forward passes change copies of them."""

from collections.abc import Iterable

import torch
from torch import nn

from elastane.common.errors import BadInput
from elastane.run.worker.state.model_layout import Extent, ModelLayout
from elastane.run.worker.state.placement import Placement


class CommittedBuffers:
    """Buffers with the values of the last committed step, in the arena; the model works on copies.

    Peers can read the arena at any moment, also while a forward pass changes the copies.

    Args:
        placement: the placement that has the arena.

    Attributes:
        tensors: the committed buffers, in the order of the layout.
    """

    def __init__(self, layout: ModelLayout, placement: Placement) -> None:
        self._layout, self._placement = layout, placement
        self.tensors = [extent.view(placement.arena.tensors) for extent in layout.buffer_extents]
        self._working = [_own_memory(module, name) for module, name in layout.buffers]
        with torch.no_grad():
            for committed, working in zip(self.tensors, self._working, strict=True):
                committed.copy_(working)

    @torch.no_grad()
    def restore(self) -> None:
        """Copy the committed buffers to the model; the training thread must not be computing."""
        for (module, name), committed, working in zip(
            self._layout.buffers, self.tensors, self._working, strict=True
        ):
            working.copy_(committed, non_blocking=True)
            # A module may have replaced its buffer with a new tensor instead of writing into it.
            module._buffers[name] = working
        if self._working:
            self._placement.synchronize()

    @torch.no_grad()
    def commit(self) -> None:
        """Commit the present values of the model's buffers."""
        for committed, working in zip(self.tensors, self._read_model(), strict=True):
            committed.copy_(working)

    @torch.no_grad()
    def take_changes(self) -> list[torch.Tensor]:
        """Return the changes that the last forward pass made to the buffers, and restore the buffers.

        Where a committed value is infinite or NaN, nothing can be subtracted from it: the change is the new
        value. Averaged state is always its new value.

        Raises:
            BadInput: a forward pass gave a buffer another shape.
        """
        buffers = self._read_model()
        for buffer, extent in zip(buffers, self._layout.buffer_extents, strict=True):
            if tuple(buffer.shape) != extent.shape:
                raise _build_shape_error(extent, tuple(buffer.shape))
        first = self._layout.first_averaged
        changes = [
            buffer.clone() if extent.section >= first else buffer.to(base.dtype) - base
            for buffer, base, extent in zip(
                buffers, self._find_bases(), self._layout.buffer_extents, strict=True
            )
        ]
        self.restore()
        return changes

    def _find_bases(self) -> list[torch.Tensor]:
        """Return the values from which changes are counted: zero where the committed value is not finite."""
        layout, sections = self._layout, self._placement.arena.tensors
        first, end = layout.parameter_sections, layout.first_averaged
        bases = (*sections[:first], *map(_replace_infinite, sections[first:end]), *sections[end:])
        return [extent.view(bases) for extent in layout.buffer_extents]

    def make_zeros(self) -> list[torch.Tensor]:
        """Return the changes of a virtual rank without samples: all zeros."""
        return [torch.zeros_like(buffer) for buffer in self.tensors]

    def apply(self, sums: tuple[torch.Tensor, ...], blocks: Iterable[int], virtual_ranks: int) -> None:
        """Add the mean change to the committed buffers, then restore the model's buffers.

        Args:
            sums: sections of the summed changes.
            blocks: the blocks of buffers to update.
            virtual_ranks: the number of virtual ranks with samples.
        """
        for number in blocks:
            block = self._layout.blocks[number]
            values = self._layout.view_block(self._placement.arena.tensors, number)
            change = sums[block.section][block.start : block.stop]
            if block.section >= self._layout.first_averaged:
                values.copy_(change / virtual_ranks)
            elif change.is_floating_point() or change.is_complex():
                _add_mean(values, change / virtual_ranks)
            else:
                values.add_(torch.div(change, virtual_ranks, rounding_mode="floor"))
            self._settle_flags(number, change)
        self.restore()

    def _settle_flags(self, number: int, change: torch.Tensor) -> None:
        """Set flags that any virtual rank has set and clear those that any has cleared: flags have no mean.

        Args:
            number: a block of buffers that already has the mean change.
        """
        block = self._layout.blocks[number]
        for piece in self._layout.buffer_pieces[number]:
            if self._layout.buffer_dtypes[piece.number] == torch.bool:
                extent = self._layout.buffer_extents[piece.number]
                start = extent.start + piece.start
                cut = slice(start - block.start, start - block.start + piece.stop - piece.start)
                values = self._layout.view_block(self._placement.arena.tensors, number)[cut]
                values.copy_(torch.where(change[cut] == 0, values, (change[cut] > 0).to(values.dtype)))

    def _read_model(self) -> list[torch.Tensor]:
        found = [module._buffers.get(name) for module, name in self._layout.buffers]
        buffers = [buffer for buffer in found if buffer is not None]
        if len(buffers) < len(found):
            raise _build_shape_error(self._layout.buffer_extents[found.index(None)], None)
        return self._placement.copy_to_host(buffers)


def _own_memory(module: nn.Module, name: str) -> torch.Tensor:
    """Return a buffer, with memory for each element: after an expansion several share one."""
    buffer = module.get_buffer(name)
    if any(size > 1 and stride == 0 for size, stride in zip(buffer.shape, buffer.stride(), strict=True)):
        buffer = module._buffers[name] = buffer.contiguous()
    return buffer


def _replace_infinite(values: torch.Tensor) -> torch.Tensor:
    """Return the values with zero in place of infinities and NaN; the same tensor if it has none."""
    is_integral = not (values.is_floating_point() or values.is_complex())
    # The sum is one pass over memory; if it overflows, the longer way gives the same values.
    if is_integral or values.sum().isfinite():
        return values
    return torch.where(values.isfinite(), values, 0)


def _add_mean(values: torch.Tensor, mean: torch.Tensor) -> None:
    """Add a mean of changes in place; values that did not change keep their bits, also -0.0."""
    bases = _replace_infinite(values)
    if bases is not values or mean.any():
        values.copy_(torch.where((mean == 0) & (bases == values), values, bases + mean))


def _build_shape_error(extent: Extent, shape: tuple[int, ...] | None) -> BadInput:
    """Return the error for a buffer that has got another shape.

    Args:
        shape: the new shape; None: the buffer is gone.
    """
    return BadInput(
        f"the shape of the buffer {extent.name} changed from {extent.shape} to {shape}",
        means="a step takes the mean of the changes of all microbatches, and shapes have no mean",
        do="give it its final shape before run.prepare, for example by one forward pass; or make it a cache: "
        "register_buffer(..., persistent=False)",
    )
