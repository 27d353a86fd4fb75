"""The writing of one virtual rank's gradients (a leaf of the tree) into the slots.

If the right sibling of a virtual rank follows directly, its gradients wait where autograd left them. Then the
writer adds both while it writes them into a slot, their own or that of the pair's sibling: one pass over
memory instead of two or three.
"""

from collections.abc import Collection, Iterable, Mapping

import torch

from elastane.common.errors import BadInput
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
        self._missing = [len(pieces) for pieces in self._layout.pieces] if announce is not None else []

    def add(self, gradients: Mapping[int, torch.Tensor | None]) -> None:
        """Add the gradients of some parameters; None counts as zeros."""
        with self._slots.lock:
            others = self._add_together(gradients) if len(gradients) > 1 else gradients
            for number in others:
                self._add_one(number, gradients[number])
            if self._announce is not None:
                self._count_down(gradients)

    def _add_one(self, number: int, gradient: torch.Tensor | None) -> None:
        slots = self._slots
        waited = self._take_waited(number, gradient)
        if not slots.complete_blocks.isdisjoint(self._layout.parameter_blocks[number]):
            self._write_around(number, waited, gradient)
        elif not self._adding or self._waiting is None:
            self._write(self._views[number], waited, gradient)
        elif waited is None or gradient is None or (sums := slots.view_scratch(number)) is None:
            extent = self._layout.extents[number]
            pair = [None if part is None else extent.flatten(part) for part in (waited, gradient)]
            slots.add_pair(extent.view_flat(self._tensors), *pair)
        else:
            self._views[number].add_(torch.add(waited, gradient, out=sums))

    def _add_together(self, gradients: Mapping[int, torch.Tensor | None]) -> list[int]:
        """Add gradients with one call of torch for each type; return the others, no plain additions.

        A call costs more than the addition of a small gradient.
        """
        complete, waiting = self._slots.complete_blocks, self._waiting
        plain = {number: gradient for number, gradient in gradients.items() if gradient is not None}
        if complete:
            blocks = self._layout.parameter_blocks
            plain = {n: gradient for n, gradient in plain.items() if complete.isdisjoint(blocks[n])}
        if waiting is not None:
            plain = {n: gradient for n, gradient in plain.items() if waiting.gradients[n] is not None}
        for numbers in self._divide_by_type(plain):
            targets = [self._views[number] for number in numbers]
            waited = [self._take_waited(n, plain[n]) for n in numbers] if waiting is not None else []
            own = [plain[number] for number in numbers]
            self._add_plain(targets, own, [one for one in waited if one is not None])
        return [number for number in gradients if number not in plain] if len(plain) < len(gradients) else []

    def _divide_by_type(self, numbers: Collection[int]) -> Collection[Collection[int]]:
        """Divide parameters by their type: calls on many tensors of several types are slow."""
        if len({section.dtype for section in self._layout.sections[: self._layout.parameter_sections]}) == 1:
            return (numbers,) if numbers else ()
        by_dtype: dict[torch.dtype, list[int]] = {}
        for number in numbers:
            by_dtype.setdefault(self._views[number].dtype, []).append(number)
        return by_dtype.values()

    def _add_plain(
        self, targets: list[torch.Tensor], own: list[torch.Tensor], waited: list[torch.Tensor]
    ) -> None:
        if self._adding:
            torch._foreach_add_(targets, torch._foreach_add(waited, own) if waited else own)
            return
        torch._foreach_copy_(targets, waited or own)
        if waited:
            torch._foreach_add_(targets, own)

    def _take_waited(self, number: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Return the gradient of the left sibling that waited for this one.

        Raises:
            BadInput: the backward pass has overwritten it.
        """
        waited = self._waiting.gradients.pop(number) if self._waiting is not None else None
        if waited is None or gradient is None:
            return waited
        if waited.data_ptr() == gradient.data_ptr() and waited.numel():
            raise _build_overwritten_error(self._layout.extents[number].name)
        return waited

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
                    complete.append(block)
        if complete and self._announce is not None:
            self._merge(complete)
            self._slots.announce(tuple(complete), self._announce)

    def _merge(self, blocks: Iterable[int]) -> None:
        """Merge slots, as `GradientSlots.assign` has planned it, in blocks without complete sums."""
        if not self._merges:
            return
        slots = self._slots
        wanted = [block for block in blocks if block not in slots.complete_blocks]
        views = [
            (slots.view_blocks(merge.target), slots.view_blocks(merge.source), merge.rounded)
            for merge in self._merges
        ]
        if not slots.memory.on_device:
            # One block after the other: it stays in the cache from one merge to the next.
            for block in wanted:
                for targets, sources, rounded in views:
                    if sources is not targets:
                        targets[block].add_(sources[block])
                    if rounded:
                        slots.round(block, targets[block])
            return
        chosen = set(wanted)
        for alike in self._layout.alike_blocks:
            together = [block for block in alike if block in chosen]
            for targets, sources, rounded in views if together else ():
                if sources is not targets:
                    torch._foreach_add_([targets[b] for b in together], [sources[b] for b in together])
                for block in together if rounded else ():
                    slots.round(block, targets[block])

    def finish(self, buffers: list[torch.Tensor]) -> None:
        """Add the changes that the forward passes made to the buffers, and merge slots."""
        slots = self._slots
        blocks = range(len(self._layout.blocks))
        of_buffers = [block for block in blocks if self._layout.is_buffers(block)]
        # The last rows of a sharded tensor may belong to other processes of the worker alone.
        empty = [b for b in blocks if not self._layout.pieces[b] and not self._layout.is_buffers(b)]
        with slots.lock:
            if self._announce is None:
                for block in of_buffers:
                    self._write_buffers(block, buffers)
                self._merge(blocks)
                return
            # One after the other, so that peers read the first ones while this worker writes the next ones.
            for block in sorted((*of_buffers, *empty)):
                self._write_buffers(block, buffers)
                self._merge((block,) if block in of_buffers else ())
                slots.announce((block,), self._announce)

    def _write_buffers(self, block: int, changes: list[torch.Tensor]) -> None:
        """Write the changes of the buffers in a block; a block of parameters has none."""
        for piece in self._layout.buffer_pieces[block]:
            extent = self._layout.buffer_extents[piece.number]
            waited = self._waiting.buffers[piece.number] if self._waiting is not None else None
            self._write_piece(block, piece, extent, waited, changes[piece.number])


def _build_overwritten_error(name: str) -> BadInput:
    return BadInput(
        f"the gradient of {name} is in the memory of that of the microbatch before, which it has overwritten",
        means="gradients of neighbouring microbatches are added together, so the first one would be lost",
        do="in the backward function that returns it, return memory of its own: gradient.clone()",
    )
