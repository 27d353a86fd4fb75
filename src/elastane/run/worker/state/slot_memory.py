"""The memory in which a worker adds gradients: the arenas that peers read, or a device with copies there.

On the CPU gradients are added in the arenas themselves (`HostSlots`). On a GPU they are added in device
memory (`DeviceSlots`); IEEE addition has the same bits there. Only final partial sums come to the host, once
for each part of the tree that the worker has, and none come while the worker is alone. If the GPU lacks the
memory for that, every gradient comes to the host and is added there (`StagedSlots`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

import msgspec
import torch

from elastane.run.worker.state.devices import (
    SideStream,
    get_cuda_stream,
    open_cuda_stream,
    register_host_memory,
)
from elastane.run.worker.state.gradient_copier import Add, GradientCopier, GradientsByNumber
from elastane.run.worker.state.gradient_groups import (
    DURING_A_PASS,
    ON_HOST,
    ONE_BY_ONE,
    UNLIMITED,
    GroupLimits,
)
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.optimizer_shards import estimate_state_bytes
from elastane.run.worker.state.shared_memory import Arena

Sections: TypeAlias = tuple[torch.Tensor, ...]
Announce: TypeAlias = Callable[[tuple[int, ...]], None]
"""Receives the numbers of blocks that have final partial sums."""
GRADIENT_COPIES = 10
"""A GPU adds gradients if half of the memory that is free when the run prepares has room for the state of the
optimizer and for this many gradients: ten slots."""

HELD_BYTES = 64 << 20
"""Gradients up to this size stay where autograd leaves them until the end of a backward pass on the CPU."""


class FinalBlocks(msgspec.Struct, frozen=True):
    """Blocks that became final together.

    Args:
        slots: all slots with partial sums of this worker.
        blocks: the numbers of the blocks.
        complete: the blocks that have complete sums; it changes.
        announce: receives the numbers when peers can read the partial sums.
    """

    slots: tuple[int, ...]
    blocks: tuple[int, ...]
    complete: AbstractSet[int]
    announce: Announce


def allocate_on_device(layout: ModelLayout, arena: Arena) -> Sections:
    """Allocate the sections of parameters on the device, all zeros; sections of buffers are the arena's."""
    trained = layout.parameter_sections
    zeros = (torch.zeros_like(section, device=layout.device) for section in arena.tensors[:trained])
    return (*zeros, *arena.tensors[trained:])


class HostSlots:
    """The slots of a worker that trains on the CPU: the arenas are the memory, and nothing is copied.

    Attributes:
        tensors: the sections of each slot, in which gradients are added.
        private: the arenas have no partial sums, because the worker is alone in this round.
        on_device: gradients are added by a device, for which a call of torch costs more than the addition.
        early_groups: the limits of the groups of gradients that are added during a backward pass.
        groups: the limits of those that are added after it.
    """

    on_device = False
    early_groups: GroupLimits = ON_HOST
    groups: GroupLimits = ON_HOST

    def __init__(self, layout: ModelLayout) -> None:
        self._layout = layout
        self._arenas: list[Arena] = []
        self.tensors: list[Sections] = []
        self.private = False

    def open_slot(self, arena: Arena) -> None:
        """Add a slot, which peers read in this arena."""
        self._arenas.append(arena)
        self.tensors.append(arena.tensors)

    def find_own_sections(self, fd: int) -> Sections:
        """Return the sections in which this worker completes the sums of a slot, by its descriptor."""
        number = next(number for number, arena in enumerate(self._arenas) if arena.fd == fd)
        return self.tensors[number] if self.private else self._arenas[number].tensors

    def find_root_sections(self) -> Sections:
        """Return the memory in which complete sums come to be on this worker."""
        return self.tensors[0] if self.private else self._arenas[0].tensors

    def begin_round(self, *, alone: bool, copied: bool) -> None:
        """Forget all sums of the round before."""

    def begin_leaf(self) -> None:
        """Note that the training thread begins a virtual rank."""

    def can_hold(self, gradient_bytes: int) -> bool:
        """Return whether the gradients of a backward pass may stay in ``.grad`` until it ends."""
        return gradient_bytes <= HELD_BYTES

    def get_stream(self) -> object:
        """Return the stream on which this thread computes; None: there are no streams."""
        return None

    def deliver(self, gradients: GradientsByNumber, add: Add) -> None:
        """Hand gradients that autograd has computed to ``add`` where they can be added."""
        add(gradients)

    def wait_for_gradients(self) -> None:
        """Wait until all gradients are delivered."""

    def publish(self, final: "FinalBlocks") -> None:
        """Announce final blocks as soon as peers can read them."""
        final.announce(final.blocks)

    def end_leaf(self, lock: AbstractContextManager[object]) -> None:
        """Wait until all final blocks of the virtual rank are announced."""

    def settle(self, block: int) -> None:
        """Wait until no copy writes the block of slot 0 that peers read."""

    def place_parts(self, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return partial sums of workers in the memory in which this worker adds them."""
        return parts

    def store_copy(self, block: int) -> None:
        """Copy a complete sum to where peers read it."""

    def share(self, slots: Iterable[int], complete: AbstractSet[int], *, copied: bool) -> None:
        """Make everything readable: the worker is not alone any more."""

    def use_side_stream(self) -> AbstractContextManager[object]:
        """Return the context in which the thread that handles a round uses sums."""
        return nullcontext()

    def find_sum(self, block: int) -> torch.Tensor:
        """Return the complete sum of a block where the model is; call it in `use_side_stream`."""
        return self._layout.view_block(self._arenas[0].tensors, block)


class SumsOnDevice(HostSlots, ABC):
    """Complete sums on a device, for the optimizer and for norms; slots of subclasses may be there, too.

    Args:
        layout: the layout of the model, with its device. On the CPU the sums are other memory of the CPU,
            which differs from a GPU only in that copies are synchronous.
        side_stream: of the reactor thread.
    """

    def __init__(self, layout: ModelLayout, side_stream: SideStream) -> None:
        super().__init__(layout)
        self._side_stream = side_stream
        self._is_gpu = layout.device.type == "cuda"
        # Slots with arenas that are registered with CUDA.
        self._pinned: set[int] = set()
        # Blocks that have their complete sums on the device.
        self._complete: set[int] = set()

    @property
    @abstractmethod
    def sums(self) -> Sections:
        """The memory of complete sums; zeros before the first round."""

    def begin_round(self, *, alone: bool, copied: bool) -> None:
        self._complete.clear()

    def pin(self, slots: Iterable[int]) -> None:
        """Register the arenas of slots with CUDA before their first copy, for faster copies."""
        for slot in slots:
            if self._is_gpu and slot not in self._pinned:
                self._pinned.add(slot)
                arena = self._arenas[slot]
                trained = arena.tensors[: self._layout.parameter_sections]
                register_host_memory(arena, trained, self._layout.device)

    def get_stream(self) -> object:
        return get_cuda_stream(self._layout.device)

    def use_side_stream(self) -> AbstractContextManager[object]:
        """Return the context in which the reactor thread uses sums; all additions to these are complete."""
        return self._side_stream.use()

    def find_sum(self, block: int) -> torch.Tensor:
        """Return the complete sum of a block on the device, if it is not one of buffers."""
        if self._layout.is_buffers(block):
            return super().find_sum(block)
        on_device = self._layout.view_block(self.sums, block)
        if not self.private and block not in self._complete:
            self.pin((0,))
            host = self._layout.view_block(self._arenas[0].tensors, block)
            on_device.copy_(host, non_blocking=True)
            self._complete.add(block)
        return on_device

    def place_sums(self, blocks: Iterable[int]) -> Sections:
        """Return the complete sums of these blocks on the device; the training thread calls this."""
        self._side_stream.join()
        for block in blocks:
            self.find_sum(block)
        return self.sums


class StagedSlots(SumsOnDevice):
    """The slots of a worker that trains on a device with little memory: gradients are added on the host.

    The copy of a gradient begins as soon as it is computed.

    Args:
        layout: see `SumsOnDevice`.
        side_stream: see `SumsOnDevice`.
    """

    early_groups = groups = ONE_BY_ONE

    def __init__(self, layout: ModelLayout, side_stream: SideStream) -> None:
        super().__init__(layout, side_stream)
        self._copier = GradientCopier(layout.device)
        self._sums: Sections | None = None

    @property
    def sums(self) -> Sections:
        if self._sums is None:
            self._sums = allocate_on_device(self._layout, self._arenas[0])
        return self._sums

    def can_hold(self, gradient_bytes: int) -> bool:
        """Return False: the device lacks memory."""
        return False

    def deliver(self, gradients: GradientsByNumber, add: Add) -> None:
        """Copy gradients to the host; the copier's thread hands the copies to ``add``."""
        self._copier.copy(gradients, add)

    def wait_for_gradients(self) -> None:
        """Wait until all gradients are delivered.

        Raises:
            BaseException: ``add`` raised it.
        """
        self._copier.wait()


class DeviceSlots(SumsOnDevice):
    """The slots of a worker that trains on a device, with copies in the arenas that peers read.

    The training thread adds on its own stream. A final block is copied to the arenas on another stream, which
    waits for the additions; a thread waits for the copy and announces the block. While the worker is alone,
    no peer reads its partial sums: final blocks are announced when the virtual rank has ended, and nothing is
    copied.

    Args:
        layout: see `SumsOnDevice`.
        side_stream: see `SumsOnDevice`.

    Attributes:
        tensors: the sections of each slot, in which gradients are added: those of parameters on the device,
            those of buffers in the arena.
        alone: no other worker takes part in this round.
    """

    on_device = True
    early_groups = DURING_A_PASS
    groups = UNLIMITED

    def __init__(self, layout: ModelLayout, side_stream: SideStream) -> None:
        super().__init__(layout, side_stream)
        self._copy_stream = open_cuda_stream(layout.device)
        self._stream: torch.cuda.Stream | None = None
        # One thread, so that blocks are announced in the order in which they become final.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="elastane-sums")
        self._announcements: list[Future[None]] = []
        self._withheld: list[FinalBlocks] = []
        self.alone = False
        # Copies that may still write to the arenas, by block.
        self._copies: dict[int, torch.cuda.Event] = {}

    @property
    def sums(self) -> Sections:
        return self.tensors[0]

    def open_slot(self, arena: Arena) -> None:
        """Allocate the device memory of the slot that peers read in this arena."""
        self._arenas.append(arena)
        self.tensors.append(allocate_on_device(self._layout, arena))

    def begin_round(self, *, alone: bool, copied: bool) -> None:
        """Forget all sums of the round before.

        Args:
            alone: the generation has no other member.
            copied: a member reads the arenas.
        """
        super().begin_round(alone=alone, copied=copied)
        self.private = self.alone = alone
        self._copies.clear()

    # -- additions (training thread) -----------------------------------------------------------------------

    def begin_leaf(self) -> None:
        """Note the stream of the training thread, on which the gradients of this virtual rank are added."""
        stream = get_cuda_stream(self._layout.device)
        if stream is None:
            return
        if self._stream is not None and stream != self._stream:
            stream.wait_stream(self._stream)
        self._stream = stream

    def can_hold(self, gradient_bytes: int) -> bool:
        """Return True: `choose_slots` has found the memory for many gradients."""
        return True

    def deliver(self, gradients: GradientsByNumber, add: Add) -> None:
        """Hand gradients to ``add``, on the stream of the slots."""
        if self._stream is None:
            add(gradients)
            return
        current = get_cuda_stream(self._layout.device)
        assert current is not None, "the slots have a stream of the same device"
        if current == self._stream:
            add(gradients)
            return
        # The forward pass ran on a stream of the script's own, and so does this part of the backward pass.
        self._stream.wait_stream(current)
        for gradient in gradients.values():
            gradient.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            add(gradients)
        # The memory of a gradient may be that of the next one, as in a replayed CUDA graph.
        current.wait_stream(self._stream)

    def publish(self, final: FinalBlocks) -> None:
        """Announce final blocks as soon as peers can read them; the caller holds the lock of the slots."""
        if self.alone:
            self._withheld.append(final)
            return
        readable = self.make_readable(final)
        self._announcements.append(self._thread.submit(_announce, readable, final))

    def make_readable(self, final: FinalBlocks) -> torch.cuda.Event | None:
        """Return the event with which peers can read final blocks; None: they can."""
        skipped = final.complete
        copied = [b for b in final.blocks if b not in skipped and not self._layout.is_buffers(b)]
        return self._copy(final.slots, copied)

    def _copy(self, slots: Sequence[int], blocks: Sequence[int]) -> torch.cuda.Event | None:
        """Queue copies of blocks to the arenas; return the event of their arrival, None on the CPU."""
        view_block = self._layout.view_block
        pairs = [
            (view_block(self._arenas[slot].tensors, block), view_block(self.tensors[slot], block))
            for block in blocks
            for slot in slots
        ]
        if self._copy_stream is None:
            for host, summed in pairs:
                host.copy_(summed)
            return None
        self.pin(slots)
        additions = self._stream or get_cuda_stream(self._layout.device)
        assert additions is not None, "a device with a stream for copies has others"
        self._copy_stream.wait_stream(additions)
        with torch.cuda.stream(self._copy_stream):
            for host, summed in pairs:
                host.copy_(summed, non_blocking=True)
        # Blocking: the thread sleeps instead of spinning.
        arrived = torch.cuda.Event(blocking=True)
        arrived.record(self._copy_stream)
        self._copies.update(dict.fromkeys(blocks, arrived))
        return arrived

    def end_leaf(self, lock: AbstractContextManager[object]) -> None:
        """Announce the final blocks that were withheld, and wait until all are announced.

        Args:
            lock: of the slots.

        Raises:
            BaseException: an announcement raised it.
        """
        # The threads that use sums wait for the additions on the device; this one need not.
        self._side_stream.mark_writes(self._stream)
        with lock:
            withheld, self._withheld = self._withheld, []
            for final in withheld:
                if self.alone:
                    final.announce(final.blocks)
                else:
                    self.publish(final)
        announcements, self._announcements = self._announcements, []
        for announcement in announcements:
            announcement.result()

    # -- sums (reactor thread) -----------------------------------------------------------------------------

    def settle(self, block: int) -> None:
        """Wait until no copy writes the block of slot 0 that peers read; the caller writes it next."""
        copy = self._copies.pop(block, None)
        if copy is not None:
            copy.synchronize()

    def share(self, slots: Iterable[int], complete: AbstractSet[int], *, copied: bool) -> None:
        """Copy everything to the arenas: the worker is not alone any more.

        The caller holds the lock of the slots.

        Args:
            complete: the blocks of slot 0 that have complete sums.
            copied: a member reads the arenas.
        """
        if not self.private:
            return
        self.private = self.alone = False
        self._complete |= complete
        blocks = [block for block in range(len(self._layout.blocks)) if not self._layout.is_buffers(block)]
        if self._layout.device.type == "cuda":
            torch.cuda.synchronize(self._layout.device)
        arrived = self._copy(sorted({0, *slots}), blocks)
        if arrived is not None:
            arrived.synchronize()


def choose_slots(layout: ModelLayout, side_stream: SideStream) -> SumsOnDevice:
    """Choose the memory for a device: on it if it fits; the sums have the same bits."""
    return DeviceSlots(layout, side_stream) if has_room_for(layout) else StagedSlots(layout, side_stream)


def has_room_for(layout: ModelLayout) -> bool:
    """Return whether the device of a model has the memory to add gradients."""
    if layout.device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(layout.device)
    sections = layout.sections[: layout.parameter_sections]
    state = sum(estimate_state_bytes(each.elements, each.dtype.itemsize) for each in sections)
    return are_added_on_device(count_trained_bytes(layout), state, free)


def are_added_on_device(gradient_bytes: int, state_bytes: int, free_bytes: int) -> bool:
    """Return whether a device has the memory to add gradients.

    Args:
        gradient_bytes: of one virtual rank.
        state_bytes: of the optimizer, at most.
        free_bytes: of the device, beside the model.
    """
    return 2 * (GRADIENT_COPIES * gradient_bytes + state_bytes) <= free_bytes


def count_trained_bytes(layout: ModelLayout) -> int:
    return sum(section.nbytes for section in layout.sections[: layout.parameter_sections])


def _announce(arrived: torch.cuda.Event | None, final: FinalBlocks) -> None:
    if arrived is not None:
        arrived.synchronize()
    final.announce(final.blocks)
