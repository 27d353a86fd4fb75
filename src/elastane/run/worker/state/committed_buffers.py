"""The committed values of the model's buffers; forward passes change copies of them."""

from collections.abc import Iterable

import torch

from elastane.run.worker.state.model_layout import ModelLayout
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
        self._working = [module.get_buffer(name) for module, name in layout.buffers]
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
        """Return the changes that the last forward pass made to the buffers, and restore the buffers."""
        changes = [
            buffer.to(committed.dtype) - committed
            for buffer, committed in zip(self._read_model(), self.tensors, strict=True)
        ]
        self.restore()
        return changes

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
            if change.is_floating_point() or change.is_complex():
                values.add_(change / virtual_ranks)
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
        return self._placement.copy_to_host(
            [module.get_buffer(name) for module, name in self._layout.buffers]
        )
