"""Partial sums of gradients: a binary counter over virtual ranks, kept in shared slots, filled by hooks.

The gradient of a virtual rank is copied into a free slot, or added to the slot of its sibling in the tree;
full siblings are merged. Where the sibling comes right after, its gradients wait where autograd left them, so
that the two are added on the way into the slot, their own or that of the pair's sibling: one pass over
memory instead of two or three. A worker with an aligned power of two ends with one slot and holds at most
``log2 V + 1`` on the way. Slot 0 is where whole sums end up, and the gradient the optimizer sees.

A gradient leaves its parameter for a slot while the backward pass goes on, but only once nothing more can
come to it: gradients of backward passes that the script runs by itself, and of backward passes inside a
backward pass (``torch.utils.checkpoint`` with ``use_reentrant=True``), add up in ``.grad`` until the pass
that `Gradients.backward` runs is over.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import xxhash
from torch._guards import CompileContext

from elastane.api.errors import BadInput
from elastane.protocol.messages import PartialSum
from elastane.protocol.tree import Span, find_sibling, find_spans, fold, plan_merges
from elastane.runtime.exhaustion import runs_script
from elastane.runtime.state.memory import Arena, raw_bytes
from elastane.runtime.state.model_layout import Extent, ModelLayout, Piece
from elastane.runtime.state.placement import Carrier

Announce = Callable[[tuple[int, ...]], None]

CONVERSIONS = frozenset(
    {
        *("to", "cpu", "cuda", "float", "double", "half", "bfloat16", "share_memory_"),
        *("is_floating_point", "is_complex", "dim", "_has_compatible_shallow_copy_type"),
    }
)
"""What ``Module.to`` and its kin do to each gradient."""

SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]

PORTION = 1 << 22
"""Elements; larger gradients are added in portions."""


class ConsumedGradient(torch.Tensor):
    """Stands in ``.grad`` for a gradient that the run has taken; refuses whatever a script does with it."""

    @classmethod
    def of(cls, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """One for each parameter, of its shape; they have next to no memory of their own."""
        zeros: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        found: list[torch.Tensor] = []
        for parameter in parameters:
            kind = parameter.dtype, parameter.device
            zero = zeros.setdefault(kind, torch.zeros((), dtype=kind[0], device=kind[1]))
            found.append(zero.expand(parameter.shape).as_subclass(cls))
        return found

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        _types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever torch asks for
        name = getattr(func, "__name__", str(func))
        # The compiler looks at the .grad of what it compiles for, and Module.to converts it too.
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as torch's own subclasses do
            if name in CONVERSIONS or CompileContext.try_get() is not None:
                return func(*args, **(kwargs or {}))
            if func == SET_DATA and not args[1].any():
                return None  # what Module.to has converted it to
        raise BadInput(
            f".grad of a trained parameter was used by the script ({name.strip('_')}), as clip_grad_norm_, "
            "clip_grad_value_, zero_grad and GradScaler.unscale_ do",
            means="the run takes the gradient of each microbatch, sums those of all workers and steps the "
            "optimizer; in .grad there is nothing left, so changing it would do nothing",
            do="to clip, write run.prepare(model, optimizer, clip_grad_norm=1.0); leave zero_grad out; "
            "change a microbatch's gradient as it is computed with parameter.register_hook(function)",
        )


class Gradients:
    """The slots of one worker.

    Args:
        layout: of the model.
        exact: sum in the fixed tree; otherwise everything into one slot as it comes.
        carrier: brings gradients to the host; None: that is where they are.

    Attributes:
        lock: held while a slot is written; the training thread (or the carrier's) adds gradients while the
            reactor thread takes over sums that peers have finished.
        rooted: blocks of slot 0 that hold whole sums and must not be added to.
    """

    def __init__(self, layout: ModelLayout, *, exact: bool, carrier: Carrier | None = None) -> None:
        self.layout = layout
        self._carrier = carrier
        self.exact = exact
        self.lock = threading.RLock()
        self.rooted: set[int] = set()
        self._arenas: list[Arena] = [Arena("slot-0", layout.sections)]
        self._nodes: dict[Span, int] = {}
        self._size = 0
        self._views: list[list[torch.Tensor]] = []
        self._leaf: _Leaf | _Kept | None = None
        self._touched: set[int] = set()
        # Of the backward pass under way: its number in autograd; None outside of one.
        self._pass: int | None = None
        # That of the microbatch at hand is over.
        self._complete = False
        # Parameters whose gradients come in several parts: those of this pass, and those of any pass so far.
        self._late: set[int] = set()
        self._in_parts: set[int] = set()
        # In a rehearsal, where nothing is delivered: how many parts each gradient came in.
        self._parts: Counter[int] = Counter()
        self._kept: _Kept | None = None
        self._scratch: dict[torch.dtype, torch.Tensor] = {}
        self._taken = ConsumedGradient.of(layout.parameters)
        self.as_gradients = self._parameter_views(0)
        for number, parameter in enumerate(layout.parameters):
            parameter.register_hook(partial(self._make_way, number))  # type: ignore[no-untyped-call]
            parameter.register_post_accumulate_grad_hook(self._hook(number))  # type: ignore[no-untyped-call]

    @runs_script
    def backward(self, loss: torch.Tensor, gradient: torch.Tensor | None = None) -> None:
        """Run the backward pass of the virtual rank at hand; its gradients go to the slots.

        Args:
            loss: a scalar.
            gradient: of the loss; None: 1.
        """

        def begun(_gradient: torch.Tensor) -> None:
            self._pass = _current_pass()

        watched = loss.register_hook(begun) if loss.requires_grad else None  # type: ignore[no-untyped-call]
        self._late.clear()
        try:
            loss.backward(gradient)  # type: ignore[no-untyped-call]
        finally:
            self._pass = None
            if watched is not None:
                watched.remove()
        self._in_parts |= self._late | {number for number, parts in self._parts.items() if parts > 1}
        self._parts.clear()
        for number in sorted(self._late):
            self._deliver(number)
        self._complete = True

    def forget(self) -> None:
        """Drop gradients that the script has computed for itself between the steps."""
        self._complete = False
        for parameter in self.layout.parameters:
            parameter.grad = None

    def refuse(self) -> None:
        """Have the script find in ``.grad`` what refuses to be used, once a step is made of the gradients."""
        for parameter, taken in zip(self.layout.parameters, self._taken, strict=True):
            parameter.grad = taken

    @property
    def sums(self) -> tuple[torch.Tensor, ...]:
        """Sections of slot 0."""
        return self._arenas[0].tensors

    @property
    def sums_fd(self) -> int:
        return self._arenas[0].fd

    def slot(self, fd: int) -> tuple[torch.Tensor, ...]:
        """Sections of one of my slots, by the number peers know it by."""
        return next(arena.tensors for arena in self._arenas if arena.fd == fd)

    def touch(self) -> None:
        """Have the kernel provide the memory of slot 0 now, and not under the first step."""
        for tensor in self.sums:
            tensor.zero_()

    def begin_round(self, size: int) -> None:
        """Forget all sums: the round before has committed, so nobody reads them any more."""
        self.rooted.clear()
        self._nodes.clear()
        self._kept = None
        self._size = size

    def parts(self) -> tuple[PartialSum, ...]:
        """What I hold, as announced to owners."""
        if not self.exact:
            ranks = (rank for start, stop in self._nodes for rank in range(start, stop))
            return (PartialSum(find_spans(ranks), self._arenas[0].fd),)
        return tuple(PartialSum((node,), self._arenas[slot].fd) for node, slot in sorted(self._nodes.items()))

    # -- one virtual rank ----------------------------------------------------------------------------------

    def begin_leaf(self, rank: int, announce: Announce | None, following: int | None = None) -> None:
        """The next backward pass is that of ``rank``.

        Args:
            rank: a virtual rank of the round.
            announce: takes blocks as they become final, if this is my last; None otherwise.
            following: the virtual rank I compute after this one, as far as is known.
        """
        self._touched.clear()
        self.forget()
        node = (rank, rank + 1)
        other = find_sibling(node, self._size) if self.exact else None
        kept, self._kept = self._kept, None
        if other == (rank + 1, rank + 2) and following == rank + 1:
            self._leaf = self._kept = _Kept()
            return
        if kept is not None and other is not None:
            node = (other[0], node[1])
            other = find_sibling(node, self._size)
        add = other is not None and other in self._nodes if self.exact else bool(self._nodes)
        if not self.exact:
            slot = 0
        elif add and other is not None:
            slot = self._nodes.pop(other)
            node = (min(node[0], other[0]), max(node[1], other[1]))
        else:
            slot = self._free_slot()
        self._leaf = _Leaf(self, slot, self._merged(node, slot), announce, add=add, kept=kept)

    def fingerprints(self) -> tuple[str, ...]:
        """Digest the gradients that the backward pass of a rehearsal has left."""
        return tuple(
            xxhash.xxh3_64_hexdigest(raw_bytes(parameter.grad.to_dense()))
            if parameter.grad is not None
            else ""
            for parameter in self.layout.parameters
        )

    def _merged(self, node: Span, slot: int) -> tuple[tuple[int, int], ...]:
        """Merges of slots that ``node``, about to lie in ``slot``, makes possible; taken note of."""
        plan = []
        while self.exact and (other := find_sibling(node, self._size)) in self._nodes:
            there = self._nodes.pop(other)
            # Whole sums end up in slot 0, so the lower slot survives.
            plan.append((min(slot, there), max(slot, there)))
            node, slot = (min(node[0], other[0]), max(node[1], other[1])), min(slot, there)
        self._nodes[node] = slot
        return tuple(plan)

    def end_leaf(self, buffers: Iterable[torch.Tensor]) -> tuple[int, ...]:
        """Complete the leaf: zeros for parameters without a gradient, and what its buffers added.

        Returns:
            The parameters that got no gradient.

        Raises:
            BadInput: the script ran a backward pass of its own after that of the virtual rank.
        """
        leaf = self._leaf
        assert leaf is not None, "end_leaf follows begin_leaf"  # noqa: S101
        for number, parameter in enumerate(self.layout.parameters):
            if parameter.grad is not None and parameter.grad is not self._taken[number]:
                if number in self._touched:
                    raise _too_late(self.layout.extents[number].name)
                self._deliver(number)
        if self._carrier is not None:
            self._carrier.wait()
        untouched = tuple(n for n in range(len(self.layout.parameters)) if n not in self._touched)
        for number in untouched:
            leaf.add(number, None)
        leaf.finish(list(buffers))
        self._leaf = None
        return untouched

    def _make_way(self, number: int, _gradient: torch.Tensor) -> None:
        """Let a backward pass of the script's own begin with an empty ``.grad``."""
        parameter = self.layout.parameters[number]
        if parameter.grad is self._taken[number]:
            parameter.grad = None

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def accumulated(_parameter: torch.Tensor) -> None:
            if self._pass is None:
                if self._complete:
                    raise _too_late(self.layout.extents[number].name)
                return  # a backward pass of the script's own: it adds up in .grad
            if self._leaf is None:
                self._parts[number] += 1
                return
            if number in self._touched:
                # Its first part is in a slot already, perhaps announced to its owner.
                raise _too_late(self.layout.extents[number].name)
            if number in self._in_parts or _current_pass() != self._pass:
                self._late.add(number)
            else:
                self._deliver(number)

        return accumulated

    def _deliver(self, number: int) -> None:
        """Move the gradient of a parameter, complete now, on its way into a slot."""
        parameter = self.layout.parameters[number]
        gradient, parameter.grad = parameter.grad, self._taken[number]
        if gradient is None:
            return
        self._touched.add(number)
        assert self._leaf is not None, "only a virtual rank's gradients are delivered"  # noqa: S101
        # Sums are dense: a block is one slice of memory, whatever the gradient looked like.
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        if self._carrier is None:
            self._leaf.add(number, dense)
        else:
            self._carrier.bring(dense, partial(self._leaf.add, number))

    # -- slots ---------------------------------------------------------------------------------------------

    def _free_slot(self) -> int:
        used = set(self._nodes.values())
        slot = next(number for number in range(len(used) + 1) if number not in used)
        while slot >= len(self._arenas):
            self._arenas.append(Arena(f"slot-{slot}", self.layout.sections))
        return slot

    def add_pair(self, target: torch.Tensor, one: torch.Tensor | None, other: torch.Tensor | None) -> None:
        """Add the sum of two virtual ranks to that of their sibling; None counts as zeros.

        Their sum passes through memory that stays in the processor's cache. It would be made sooner in one of
        the two, but another parameter's gradient may lie in the same memory: of ``a.reshape(3) +
        b.reshape(3)`` autograd gives both the same.

        Args:
            target: 1-D.
            one: 1-D and as long.
            other: likewise.
        """
        if one is None:
            one, other = other, None
        if one is None:
            target.add_(0)
            return
        scratch = self._scratch.get(target.dtype)
        if scratch is None:
            largest = max(parameter.numel() for parameter in self.layout.parameters)
            scratch = self._scratch[target.dtype] = torch.empty(min(PORTION, largest), dtype=target.dtype)
        for begin in range(0, target.numel(), scratch.numel()):
            portion = slice(begin, begin + scratch.numel())
            some = target[portion]
            sums = scratch[: some.numel()]
            some.add_(torch.add(one[portion], 0 if other is None else other[portion], out=sums))

    def _parameter_views(self, slot: int) -> list[torch.Tensor]:
        while len(self._views) <= slot:
            tensors = self._arenas[len(self._views)].tensors
            self._views.append([extent.view(tensors) for extent in self.layout.extents])
        return self._views[slot]

    # -- sums (reactor thread) -----------------------------------------------------------------------------

    def reduce(self, block: int, parts: Sequence[tuple[tuple[Span, ...], torch.Tensor, bool]]) -> None:
        """Sum all parts of ``block`` in the order of the tree into slot 0.

        Args:
            block: its number.
            parts: for each, its virtual ranks, its elements, and whether I may write there.
        """
        nodes = [part[0][0] for part in parts]
        plan = plan_merges(nodes, self._size) if self.exact else fold(nodes)
        held = [part[1] for part in parts]
        mine = [part[2] for part in parts]
        with self.lock:
            for merge in plan:
                if mine[merge.target]:
                    held[merge.target].add_(held[merge.source])
                elif mine[merge.source]:
                    # Addition of two numbers commutes to the bit.
                    held[merge.target] = held[merge.source].add_(held[merge.target])
                    mine[merge.target] = True
                else:
                    held[merge.target] = held[merge.target] + held[merge.source]
                    mine[merge.target] = True
            root = held[plan[-1].target] if plan else held[0]
            sums = self.layout.block(self.sums, block)
            if root.data_ptr() != sums.data_ptr():
                sums.copy_(root)
            self.rooted.add(block)

    def take(self, block: int, sums: torch.Tensor) -> None:
        """Take over a whole sum from a peer."""
        with self.lock:
            self.layout.block(self.sums, block).copy_(sums)
            self.rooted.add(block)


def _current_pass() -> int:
    """The number that autograd gives the backward pass this thread is in; one inside another has its own."""
    return torch._C._current_graph_task_id()  # noqa: SLF001 - as torch.utils.checkpoint does


def _too_late(name: str) -> BadInput:
    return BadInput(
        f"{name} got another gradient after its gradient of this microbatch was complete",
        means="workers sum gradients while the backward pass goes on, so what comes later would be lost",
        do="call loss.backward() of your own before step.backward(loss), or add the losses; "
        "use torch.utils.checkpoint with use_reentrant=False",
    )


class _Kept:
    """A virtual rank whose gradients wait for those of its sibling."""

    def __init__(self) -> None:
        self.gradients: dict[int, torch.Tensor | None] = {}
        self.buffers: list[torch.Tensor] = []

    def add(self, number: int, gradient: torch.Tensor | None) -> None:
        self.gradients[number] = gradient

    def finish(self, buffers: list[torch.Tensor]) -> None:
        self.buffers = buffers


class _Leaf:
    """One virtual rank on its way into the slots, together with its sibling if that was kept."""

    def __init__(
        self,
        gradients: Gradients,
        slot: int,
        plan: tuple[tuple[int, int], ...],
        announce: Announce | None,
        *,
        add: bool,
        kept: _Kept | None,
    ) -> None:
        self._gradients = gradients
        self._layout = gradients.layout
        self._slot = slot
        self._plan = plan
        self._announce = announce
        self._adding = add
        self._kept = kept
        self._views = gradients._parameter_views(slot)  # noqa: SLF001 - the other half of Gradients
        self._missing = [len(pieces) for pieces in self._layout.pieces]

    def add(self, number: int, gradient: torch.Tensor | None) -> None:
        gradients = self._gradients
        kept = self._kept.gradients.pop(number) if self._kept is not None else None
        with gradients.lock:
            if gradients.rooted.isdisjoint(self._layout.blocks_of[number]):
                if self._adding and self._kept is not None:
                    extent = self._layout.extents[number]
                    target = extent.flat(gradients._arenas[self._slot].tensors)  # noqa: SLF001
                    flat = [None if one is None else extent.flattened(one) for one in (kept, gradient)]
                    gradients.add_pair(target, *flat)
                else:
                    self._write(self._views[number], kept, gradient)
            else:
                self._write_around(number, kept, gradient)
            if self._announce is not None:
                self._count_down(number)

    def _write(self, target: torch.Tensor, kept: torch.Tensor | None, gradient: torch.Tensor | None) -> None:
        """The sum of what is there, what was kept and the gradient; None counts as zeros.

        A zero is added, not left out: -0.0 + 0.0 is 0.0, wherever the two are added.
        """
        if kept is not None and gradient is not None:
            torch.add(kept, gradient, out=target)
            return
        if self._kept is not None:
            if kept is None:
                target.zero_()
            else:
                target.copy_(kept)
        if self._adding or self._kept is not None:
            target.add_(0 if gradient is None else gradient)
        elif gradient is None:
            target.zero_()
        else:
            target.copy_(gradient)

    def _write_around(self, number: int, kept: torch.Tensor | None, gradient: torch.Tensor | None) -> None:
        """Some of the parameter's blocks are whole sums already: leave those alone."""
        extent = self._layout.extents[number]
        for block in self._layout.blocks_of[number]:
            for piece in self._layout.pieces[block]:
                if piece.number == number:
                    self._write_piece(block, piece, extent, kept, gradient)

    def _write_piece(
        self,
        block: int,
        piece: Piece,
        extent: Extent,
        kept: torch.Tensor | None,
        change: torch.Tensor | None,
    ) -> None:
        if block in self._gradients.rooted:
            return
        target = extent.flat(self._gradients._arenas[self._slot].tensors)  # noqa: SLF001
        cut = slice(piece.start, piece.stop)
        pair = [None if one is None else extent.flattened(one)[cut] for one in (kept, change)]
        write = self._gradients.add_pair if self._adding and self._kept is not None else self._write
        write(target[cut], *pair)

    def _count_down(self, number: int) -> None:
        done = []
        for block in self._layout.blocks_of[number]:
            self._missing[block] -= 1
            if self._missing[block] == 0:
                self._merge(block)
                done.append(block)
        if done and self._announce is not None:
            self._announce(tuple(done))

    def _merge(self, block: int) -> None:
        if block in self._gradients.rooted:
            return
        arenas = self._gradients._arenas  # noqa: SLF001 - the other half of Gradients
        for target, source in self._plan:
            into = self._layout.block(arenas[target].tensors, block)
            into.add_(self._layout.block(arenas[source].tensors, block))

    def finish(self, buffers: list[torch.Tensor]) -> None:
        gradients = self._gradients
        blocks = range(len(self._layout.blocks))
        of_buffers = [block for block in blocks if self._layout.is_buffers(block)]
        with gradients.lock:
            for block in of_buffers:
                for piece in self._layout.buffer_pieces[block]:
                    extent = self._layout.buffer_extents[piece.number]
                    kept = self._kept.buffers[piece.number] if self._kept is not None else None
                    self._write_piece(block, piece, extent, kept, buffers[piece.number])
            merged = of_buffers if self._announce is not None else blocks
            for block in merged:
                self._merge(block)
            if self._announce is not None and of_buffers:
                self._announce(tuple(of_buffers))
