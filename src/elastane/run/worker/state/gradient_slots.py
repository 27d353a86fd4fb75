"""Partial sums of gradients: a binary counter over virtual ranks, in slots of memory that peers read.

A worker that has an aligned power of two of virtual ranks needs at most ``log2 V + 1`` slots, and ends with
one. Complete sums end up in slot 0, from which the optimizer reads the gradient.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TypeAlias

import msgspec
import torch

from elastane.run.protocol.messages import PartialSum
from elastane.run.protocol.tree import (
    Span,
    cover,
    expand_spans,
    find_sibling,
    find_spans,
    fold,
    fold_node,
    merge_siblings,
    plan_merges,
)
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.shared_memory import Arena
from elastane.run.worker.state.slot_memory import Announce, FinalBlocks, HostSlots
from elastane.run.worker.state.wire_formats import WireFormat

AnnounceParts: TypeAlias = Callable[[tuple[PartialSum, ...], tuple[int, ...]], None]
"""Receives partial sums, and the numbers of the blocks of which they are final."""
PORTION = 1 << 22
"""A number of elements; larger gradients are added in portions of this size."""


class SlotMerge(msgspec.Struct, frozen=True):
    """The addition of one slot to another.

    Args:
        target: the slot that holds the sum then.
        source: the other slot; the same one: nothing is added.
        rounded: the target has the sum of a node of the tree that is rounded then.
    """

    target: int
    source: int
    rounded: bool = False


class GradientSlots:
    """The slots of one worker.

    Args:
        exact: sum in the order of the fixed tree; otherwise add every gradient to slot 0 on arrival.
        memory: the memory in which gradients are added.

    Attributes:
        together: as in `elastane.run.protocol.layout.Layout`: the gradients of a virtual rank are this
            process's part of the sum over that number of neighbours.
        lock: held while a slot is written; the training thread adds gradients while the reactor thread stores
            sums that peers have completed.
        complete_blocks: blocks of slot 0 that hold complete sums, to which nothing may be added.
        arenas: the memory of each slot that peers read.
        wire: the format to which sums of some nodes of the tree, and complete sums, are rounded; None: they
            are not.
        node_arenas: the memory of each merged part of this worker's node; only the blocks that this worker
            leads take memory.
    """

    def __init__(self, layout: ModelLayout, memory: HostSlots, *, exact: bool) -> None:
        self.layout = layout
        self.together = 1
        self.memory = memory
        self.exact = exact
        self.lock = threading.RLock()
        self.complete_blocks: set[int] = set()
        self.arenas: list[Arena] = []
        self.wire: WireFormat | None = None
        self.node_arenas: list[Arena] = []
        self._nodes: dict[Span, int] = {}
        # Nodes that have been announced and to which this worker adds nothing more.
        self._announced: set[Span] = set()
        self._assignment = 0
        self._alone = False
        self._size = 0
        # Views of each slot, which are made once: a view costs as much as the addition of a small gradient.
        self._views: list[list[torch.Tensor]] = []
        self._block_views: list[list[torch.Tensor]] = []
        self._scratch: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        self._scratch_views: dict[int, torch.Tensor | None] = {}
        self._open_slot()

    def _open_slot(self) -> None:
        arena = Arena(f"slot-{len(self.arenas)}", self.layout.sections)
        self.arenas.append(arena)
        self.memory.open_slot(arena)

    @property
    def sums(self) -> tuple[torch.Tensor, ...]:
        """The sections of slot 0 that peers read."""
        return self.arenas[0].tensors

    @property
    def sums_fd(self) -> int:
        return self.arenas[0].fd

    def find_sections(self, fd: int) -> tuple[torch.Tensor, ...]:
        """Return the sections of the slot that peers know by this file descriptor."""
        return next(arena.tensors for arena in chain(self.arenas, self.node_arenas) if arena.fd == fd)

    def find_slot(self, spans: tuple[Span, ...]) -> int:
        """Return the descriptor of the slot with a partial sum of this worker."""
        return self.arenas[self._nodes[spans[0]]].fd

    def touch(self) -> None:
        """Touch slot 0, so that the kernel provides its memory now instead of during the first step."""
        for tensor in self.sums:
            tensor.zero_()

    @property
    def is_alone(self) -> bool:
        """No other worker takes part in this round."""
        return self._alone

    def begin_round(self, size: int, *, alone: bool, copied: bool = True) -> None:
        """Forget all sums: the previous round has committed, so no worker reads them.

        Args:
            alone: no other worker takes part, so none reads partial sums.
            copied: a worker that takes part reads the arenas.
        """
        self.complete_blocks.clear()
        self._nodes.clear()
        self._announced.clear()
        self._alone = alone
        self._size = size
        self.memory.begin_round(alone=alone, copied=copied and not alone)

    def share(self, *, copied: bool = True) -> None:
        """Let peers read the partial sums of a round that this worker began alone, or with other peers.

        Args:
            copied: a worker that takes part reads the arenas.
        """
        with self.lock:
            self.memory.share(self._nodes.values(), self.complete_blocks, copied=copied)
            self._alone = False

    def list_parts(self) -> tuple[PartialSum, ...]:
        """Return the partial sums of this worker, as it announces them to the owners of the blocks."""
        if not self.exact:
            ranks = (rank for start, stop in self._nodes for rank in range(start, stop))
            return (PartialSum(find_spans(ranks), self.arenas[0].fd),)
        return tuple(PartialSum((node,), self.arenas[slot].fd) for node, slot in sorted(self._nodes.items()))

    # -- announcements -------------------------------------------------------------------------------------

    def begin_assignment(self, assignment: int) -> None:
        """Forget which nodes are announced if there are more virtual ranks, which may be added to them."""
        if assignment != self._assignment:
            self._assignment = assignment
            self._announced.clear()

    def list_unannounced_parts(self) -> tuple[PartialSum, ...]:
        """Return the partial sums that are final with the last virtual rank, as `list_parts` does."""
        if not self.exact:
            return self.list_parts()
        return self._list_parts_of(self._nodes.keys() - self._announced)

    def _list_parts_of(self, nodes: Iterable[Span]) -> tuple[PartialSum, ...]:
        return tuple(PartialSum((node,), self.arenas[self._nodes[node]].fd) for node in sorted(nodes))

    def announce_early(self, following: Sequence[int], announce: AnnounceParts) -> None:
        """Announce the nodes that are complete now, to which no later virtual rank is added.

        Args:
            following: the virtual ranks that may have no gradients in the slots yet.
            announce: receives the blocks and the parts when peers can read them.
        """
        if not self.exact or self._alone:
            return
        with self.lock:
            ranks = expand_spans([*self._nodes, *map(self._find_leaf, following)])
            final = set(cover(ranks, self._size)) & self._nodes.keys() - self._announced
            if not final:
                return
            parts = self._list_parts_of(final)
            self._announced |= final
            slots = tuple(sorted(self._nodes[node] for node in final))
            blocks = tuple(range(len(self.layout.blocks)))
            announce_blocks = partial(announce, parts)
            self.memory.publish(FinalBlocks(slots, blocks, self.complete_blocks, announce_blocks))

    # -- slots of a virtual rank ---------------------------------------------------------------------------

    def has_sibling(self, rank: int, following: int | None) -> bool:
        """Return whether the gradients of ``rank`` wait for those of its right sibling, ``following``."""
        if not self.exact or self.wire is not None or following != rank + self.together:
            return False
        if self.memory.on_device:
            # A replayed CUDA graph puts each gradient where the last one was, so none waits in its memory.
            return False
        return find_sibling(self._find_leaf(rank), self._size) == self._find_leaf(following)

    def _find_leaf(self, rank: int) -> Span:
        """Return the virtual ranks that are computed together with this one, which are a node of the tree."""
        first = rank - rank % self.together
        return first, first + self.together

    def assign(self, rank: int, *, with_sibling: bool) -> tuple[int, bool, tuple[SlotMerge, ...]]:
        """Choose the slot of a virtual rank.

        Args:
            with_sibling: its left sibling goes into the slot together with it.

        Returns:
            The slot, whether to add to it, and the merges of slots that follow.
        """
        node = self._find_leaf(rank)
        sibling = find_sibling(node, self._size) if self.exact else None
        if with_sibling and sibling is not None:
            node = (sibling[0], node[1])
            sibling = find_sibling(node, self._size)
        if not self.exact:
            add, slot = bool(self._nodes), 0
        elif sibling is not None and sibling in self._nodes:
            add, slot = True, self._nodes.pop(sibling)
            node = _join(node, sibling)
        else:
            add, slot = False, self._find_free_slot()
        return slot, add, self._plan_merges(node, slot)

    def _plan_merges(self, node: Span, slot: int) -> tuple[SlotMerge, ...]:
        """Record ``node`` in ``slot`` and merge it with its complete siblings; return these merges."""
        plan = [SlotMerge(slot, slot, rounded=True)] if self._is_rounded(node) else []
        while self.exact and (sibling := find_sibling(node, self._size)) in self._nodes:
            sibling_slot = self._nodes.pop(sibling)
            # Complete sums end up in slot 0, so the lower slot remains.
            node = _join(node, sibling)
            lower, higher = min(slot, sibling_slot), max(slot, sibling_slot)
            plan.append(SlotMerge(lower, higher, self._is_rounded(node)))
            slot = lower
        self._nodes[node] = slot
        return tuple(plan)

    def _is_rounded(self, node: Span) -> bool:
        """Return whether the sum of this node of the tree is rounded; a single difference is already."""
        group = self.wire.group if self.exact and self.wire is not None else 1
        return group > 1 and node[1] - node[0] == group

    def _find_free_slot(self) -> int:
        used = set(self._nodes.values())
        slot = next(number for number in range(len(used) + 1) if number not in used)
        while slot >= len(self.arenas):
            self._open_slot()
        return slot

    def view_parameters(self, slot: int) -> list[torch.Tensor]:
        """Return the memory of each parameter in a slot, with the parameter's shape."""
        while len(self._views) <= slot:
            tensors = self.memory.tensors[len(self._views)]
            self._views.append([extent.view(tensors) for extent in self.layout.extents])
        return self._views[slot]

    def view_blocks(self, slot: int) -> list[torch.Tensor]:
        """Return the memory of each block in a slot, 1-D."""
        while len(self._block_views) <= slot:
            tensors = self.memory.tensors[len(self._block_views)]
            blocks = range(len(self.layout.blocks))
            self._block_views.append([self.layout.view_block(tensors, block) for block in blocks])
        return self._block_views[slot]

    def view_scratch(self, number: int) -> torch.Tensor | None:
        """Return the memory of `add_pair` with the shape of a parameter; None: it is too small."""
        if number not in self._scratch_views:
            extent, parameter = self.layout.extents[number], self.layout.parameters[number]
            scratch = self._find_scratch(parameter)
            fits = parameter.numel() <= scratch.numel()
            self._scratch_views[number] = scratch.as_strided(extent.shape, extent.stride) if fits else None
        return self._scratch_views[number]

    def _find_scratch(self, like: torch.Tensor) -> torch.Tensor:
        """Return the memory for sums of pairs that have the type and the device of a tensor."""
        kind = like.dtype, like.device
        if kind not in self._scratch:
            largest = max(parameter.numel() for parameter in self.layout.parameters)
            self._scratch[kind] = torch.empty(min(PORTION, largest), dtype=like.dtype, device=like.device)
        return self._scratch[kind]

    def add_pair(self, target: torch.Tensor, left: torch.Tensor | None, right: torch.Tensor | None) -> None:
        """Add the sum of two virtual ranks to the sum of their sibling; None counts as zeros.

        The sum passes through memory that stays in the processor's cache. Adding in place to one of the two
        would be faster, but the gradient of another parameter may share its memory: for
        ``a.reshape(3) + b.reshape(3)`` autograd gives both parameters the same tensor.

        Args:
            target: the sum of the sibling, 1-D.
            left: the gradient of the left virtual rank, 1-D and of the same length.
            right: the gradient of the right virtual rank, likewise.
        """
        if left is None:
            left, right = right, None
        if left is None:
            target.add_(0)
            return
        scratch = self._find_scratch(target)
        for begin in range(0, target.numel(), scratch.numel()):
            portion = slice(begin, begin + scratch.numel())
            sums = target[portion]
            pair_sums = scratch[: sums.numel()]
            sums.add_(torch.add(left[portion], 0 if right is None else right[portion], out=pair_sums))

    def announce(self, blocks: tuple[int, ...], announce: Announce) -> None:
        """Announce final blocks as soon as peers can read them; the caller holds the lock."""
        slots = tuple(sorted(slot for node, slot in self._nodes.items() if node not in self._announced))
        self.memory.publish(FinalBlocks(slots, blocks, self.complete_blocks, announce))

    # -- sums (reactor thread) -----------------------------------------------------------------------------

    def reduce(self, block: int, parts: Sequence[tuple[tuple[Span, ...], torch.Tensor, bool]]) -> None:
        """Sum all parts of a block into slot 0, in the order of the tree.

        Args:
            parts: of each part, its virtual ranks, its elements, and whether this worker may write to them.
        """
        nodes = [part[0][0] for part in parts]
        plan = plan_merges(nodes, self._size) if self.exact else fold(nodes)
        sums = self.find_root(block)
        with self.lock, self.memory.use_side_stream():
            self.memory.settle(block)
            partial_sums = self.memory.place_parts([part[1] for part in parts])
            writable = [part[2] for part in parts]
            for merge in plan:
                target, source = partial_sums[merge.target], partial_sums[merge.source]
                if writable[merge.target]:
                    target.add_(source)
                else:
                    # Addition of two floating-point numbers commutes exactly.
                    in_place = writable[merge.source]
                    partial_sums[merge.target] = source.add_(target) if in_place else target + source
                    writable[merge.target] = True
                nodes[merge.target] = _join(nodes[merge.target], nodes[merge.source])
                if self._is_rounded(nodes[merge.target]):
                    self.round(block, partial_sums[merge.target])
            root = partial_sums[plan[-1].target] if plan else partial_sums[0]
            if root.data_ptr() != sums.data_ptr():
                sums.copy_(root)
            if (wire := self._choose_wire(block)) is not None:
                wire.sums.round(sums)
            self.memory.store_copy(block)
            self.complete_blocks.add(block)

    def find_root(self, block: int) -> torch.Tensor:
        """Return the memory of the whole sum of a block on this worker."""
        return self.layout.view_block(self.memory.find_root_sections(), block)

    def list_node_parts(self, block: int) -> list[torch.Tensor]:
        """Return the memory of the parts of a block that `merge_node` may leave; it may add more."""
        return [self.layout.view_block(arena.tensors, block) for arena in self.node_arenas]

    def merge_node(
        self, block: int, parts: Sequence[tuple[tuple[Span, ...], torch.Tensor, bool]]
    ) -> tuple[PartialSum, ...]:
        """Merge the partial sums that the workers of this node have of a block; return the rest.

        It only reads the slots of virtual ranks: if a worker dies now, another generation needs them again.

        Args:
            parts: of each part, its virtual ranks, its elements, and whether this worker may write to them.
        """
        spans = [part[0] for part in parts]
        plan = merge_siblings([some[0] for some in spans], self._size) if self.exact else fold_node(spans)
        partial_sums = self.memory.place_parts([part[1] for part in parts])
        writable = [part[2] for part in parts]
        nodes = [some[0] for some in spans]
        last = {merge.target: merge for merge in plan.merges}
        places = {number: place for place, (_, number) in enumerate(plan.left)}
        while len(self.node_arenas) < len(plan.left):
            self.node_arenas.append(Arena(f"node-{len(self.node_arenas)}", self.layout.sections))
        views = self.list_node_parts(block)
        for merge in plan.merges:
            number = merge.target
            target, source = partial_sums[number], partial_sums[merge.source]
            if number in places and last[number] is merge:
                view = views[places[number]]
                # Other machines read it on the host.
                on_host = target.device == view.device
                partial_sums[number] = (
                    torch.add(target, source, out=view) if on_host else view.copy_(target + source)
                )
            elif writable[number]:
                target.add_(source)
            else:
                partial_sums[number], writable[number] = target + source, True
            nodes[number] = _join(nodes[number], nodes[merge.source])
            if self._is_rounded(nodes[number]):
                self.round(block, partial_sums[number])
        for number, place in places.items():
            if number not in last:
                views[place].copy_(partial_sums[number])
        return tuple(
            PartialSum(some, arena.fd) for (some, _), arena in zip(plan.left, self.node_arenas, strict=False)
        )

    def round(self, block: int, sums: torch.Tensor) -> None:
        """Round sums of a block in place, unless it has buffers."""
        if (wire := self._choose_wire(block)) is not None:
            wire.round(sums)

    def _choose_wire(self, block: int) -> WireFormat | None:
        """Return the format to which sums of a block are rounded; None: they are not."""
        if self.wire is None or not self.layout.is_buffers(block):
            return self.wire
        return self.wire.moments if self.layout.blocks[block].section >= self.layout.first_moments else None

    def store_sum(self, block: int, sums: torch.Tensor) -> None:
        """Store the complete sum of a block, which a peer has computed."""
        with self.lock, self.memory.use_side_stream():
            self.memory.settle(block)
            self.find_root(block).copy_(sums)
            self.memory.store_copy(block)
            self.complete_blocks.add(block)


def _join(one: Span, other: Span) -> Span:
    """Return the node of the tree that two siblings form."""
    return min(one[0], other[0]), max(one[1], other[1])
