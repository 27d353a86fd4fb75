"""The writing of one virtual rank's gradients (a leaf of the tree) into the slots.

If the right sibling of a virtual rank follows directly, its gradients wait where autograd left them. Then the
writer adds both while it writes them into a slot, their own or that of the pair's sibling: one pass over
memory instead of two or three.
"""

from collections.abc import Iterable, Mapping

import torch

from elastane.run.worker.state.gradient_slots import GradientSlots
from elastane.run.worker.state.model_layout import Extent, Piece
from elastane.run.worker.state.slot_memory import Announce


class WaitingLeaf:
    """The gradients of a virtual rank while they wait for those of its sibling."""

    def __init__(self) -> None:
        self.gradients: dict[int, torch.Tensor | None] = {}
        self.buffers: list[torch.Tensor] = []

    def add(self, gradients: Mapping[int, torch.Tensor | None]) -> None:
        self.gradients.update(gradients)

    def finish(self, buffers: list[torch.Tensor]) -> None:
        self.buffers = buffers


class LeafWriter:
    """Writes the gradients of a virtual rank, and of the sibling that waited for it, into the slots.

    Args:
        announce: receives blocks as they become final, if this is the last virtual rank of the worker.
        waiting: the left sibling, if its gradients wait.
    """

    def __init__(
        self, slots: GradientSlots, rank: int, announce: Announce | None, waiting: WaitingLeaf | None
    ) -> None:
        self._slots = slots
        self._layout = slots.layout
        slot, self._adding, self._merges = slots.assign(rank, with_sibling=waiting is not None)
        self._announce = announce
        self._waiting = waiting
        self._tensors = slots.memory.tensors[slot]
        self._views = slots.view_parameters(slot)
        self._missing = [len(pieces) for pieces in self._layout.pieces]

    def add(self, gradients: Mapping[int, torch.Tensor | None]) -> None:
        """Add the gradients of some parameters; None counts as zeros."""
        with self._slots.lock:
            if len(gradients) == 1 or not self._add_together(gradients):
                for number, gradient in gradients.items():
                    self._add_one(number, gradient)
            if self._announce is not None:
                self._count_down(gradients)

    def _add_one(self, number: int, gradient: torch.Tensor | None) -> None:
        slots = self._slots
        waited = self._waiting.gradients.pop(number) if self._waiting is not None else None
        if not slots.complete_blocks.isdisjoint(self._layout.parameter_blocks[number]):
            self._write_around(number, waited, gradient)
        elif self._adding and self._waiting is not None:
            extent = self._layout.extents[number]
            pair = [None if part is None else extent.flatten(part) for part in (waited, gradient)]
            slots.add_pair(extent.view_flat(self._tensors), *pair)
        else:
            self._write(self._views[number], waited, gradient)

    def _add_together(self, gradients: Mapping[int, torch.Tensor | None]) -> bool:
        """Add gradients with few calls of torch, if all are plain additions; return whether it has.

        A call costs more than the addition of a small gradient.
        """
        waiting = self._waiting
        own = [gradient for gradient in gradients.values() if gradient is not None]
        waited = [] if waiting is None else [waiting.gradients[number] for number in gradients]
        siblings = [gradient for gradient in waited if gradient is not None]
        if self._slots.complete_blocks or len(own) < len(gradients) or len(siblings) < len(waited):
            return False
        targets = [self._views[number] for number in gradients]
        if self._adding:
            pairs = own if waiting is None else torch._foreach_add(siblings, own)
            torch._foreach_add_(targets, pairs)
        else:
            torch._foreach_copy_(targets, own if waiting is None else siblings)
            if waiting is not None:
                torch._foreach_add_(targets, own)
        if waiting is not None:
            for number in gradients:
                del waiting.gradients[number]
        return True

    def _write(
        self, target: torch.Tensor, waited: torch.Tensor | None, gradient: torch.Tensor | None
    ) -> None:
        """Store or add the sum of the sibling's gradient and this one; None counts as zeros.

        It adds zeros instead of leaving them out: -0.0 + 0.0 is 0.0, and every worker must get the same bits.
        """
        if waited is not None and gradient is not None:
            torch.add(waited, gradient, out=target)
            return
        if self._waiting is not None:
            if waited is None:
                target.zero_()
            else:
                target.copy_(waited)
        if self._adding or self._waiting is not None:
            target.add_(0 if gradient is None else gradient)
        elif gradient is None:
            target.zero_()
        else:
            target.copy_(gradient)

    def _write_around(self, number: int, waited: torch.Tensor | None, gradient: torch.Tensor | None) -> None:
        """Write the blocks of a parameter that do not have complete sums yet."""
        extent = self._layout.extents[number]
        for block in self._layout.parameter_blocks[number]:
            for piece in self._layout.pieces[block]:
                if piece.number == number:
                    self._write_piece(block, piece, extent, waited, gradient)

    def _write_piece(
        self,
        block: int,
        piece: Piece,
        extent: Extent,
        waited: torch.Tensor | None,
        change: torch.Tensor | None,
    ) -> None:
        if block in self._slots.complete_blocks:
            return
        target = extent.view_flat(self._tensors)
        cut = slice(piece.start, piece.stop)
        pair = [None if part is None else extent.flatten(part)[cut] for part in (waited, change)]
        write = self._slots.add_pair if self._adding and self._waiting is not None else self._write
        write(target[cut], *pair)

    def _count_down(self, numbers: Iterable[int]) -> None:
        complete = []
        for number in numbers:
            for block in self._layout.parameter_blocks[number]:
                self._missing[block] -= 1
                if self._missing[block] == 0:
                    self._merge(block)
                    complete.append(block)
        if complete and self._announce is not None:
            self._slots.announce(tuple(complete), self._announce)

    def _merge(self, block: int) -> None:
        if block in self._slots.complete_blocks:
            return
        tensors = self._slots.memory.tensors
        for target, source in self._merges:
            into = self._layout.view_block(tensors[target], block)
            into.add_(self._layout.view_block(tensors[source], block))

    def finish(self, buffers: list[torch.Tensor]) -> None:
        """Add the changes that the forward passes made to the buffers, and merge slots."""
        slots = self._slots
        blocks = range(len(self._layout.blocks))
        of_buffers = [block for block in blocks if self._layout.is_buffers(block)]
        with slots.lock:
            for block in of_buffers:
                for piece in self._layout.buffer_pieces[block]:
                    extent = self._layout.buffer_extents[piece.number]
                    waited = self._waiting.buffers[piece.number] if self._waiting is not None else None
                    self._write_piece(block, piece, extent, waited, buffers[piece.number])
            merged = of_buffers if self._announce is not None else blocks
            for block in merged:
                self._merge(block)
            if self._announce is not None and of_buffers:
                slots.announce(tuple(of_buffers), self._announce)
