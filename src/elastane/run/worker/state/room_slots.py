"""The slots of a worker with peers that read the memory of its device: sums do not pass through the host."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import torch

from elastane.run.worker.state.devices import SideStream
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.rooms import Rooms
from elastane.run.worker.state.shared_memory import Arena
from elastane.run.worker.state.slot_memory import DeviceSlots, FinalBlocks, Sections


class RoomSlots(DeviceSlots):
    """Slots in rooms, which have all sums of this worker; arenas have copies if a peer reads no rooms.

    Such a peer is on another machine, or trains on another kind of device. While all peers read rooms,
    `private` is True, and a final block is announced as soon as the additions have ended.

    Args:
        layout: see `DeviceSlots`.
        side_stream: see `DeviceSlots`.
        rooms: of this worker.
    """

    def __init__(self, layout: ModelLayout, side_stream: SideStream, rooms: Rooms) -> None:
        super().__init__(layout, side_stream)
        self._rooms = rooms
        # Blocks to which no more additions are under way.
        self._settled: set[int] = set()

    def open_slot(self, arena: Arena) -> None:
        """Allocate the room of the slot."""
        self._arenas.append(arena)
        self.tensors.append((*self._rooms.open(arena.fd), *arena.tensors[self._layout.parameter_sections :]))

    def begin_round(self, *, alone: bool, copied: bool) -> None:
        """Forget all sums of the round before.

        Args:
            alone: the generation has no other member.
            copied: a member reads no rooms.
        """
        super().begin_round(alone=alone, copied=copied)
        self.private = not copied

    def find_own_sections(self, fd: int) -> Sections:
        number = next(number for number, arena in enumerate(self._arenas) if arena.fd == fd)
        return self.tensors[number]

    def find_root_sections(self) -> Sections:
        """Return the memory of complete sums."""
        return self.tensors[0]

    def begin_leaf(self) -> None:
        super().begin_leaf()
        self._settled.clear()

    def settle(self, block: int) -> None:
        """Let the kernels that write the complete sum of a block wait for additions to its memory.

        Usually these have ended: all parts were announced. But a member may take the sum from before a death
        while it computes virtual ranks of the dead worker, which are in no part of that sum.
        """
        super().settle(block)
        if block not in self._settled:
            self._side_stream.wait_for(self._stream)

    def make_readable(self, final: FinalBlocks) -> torch.cuda.Event | None:
        self._settled.update(final.blocks)
        return super().make_readable(final) if not self.private else self._mark_additions()

    def _mark_additions(self) -> torch.cuda.Event | None:
        """Return the event of the end of all additions so far; None: there are no streams."""
        if self._stream is None:
            return None
        # Blocking: the thread that waits sleeps instead of spinning.
        ended = torch.cuda.Event(blocking=True)
        ended.record(self._stream)
        return ended

    def find_sum(self, block: int) -> torch.Tensor:
        """Return the complete sum of a block, which is on the device already."""
        return self._layout.view_block(self.tensors[0], block)

    def place_parts(self, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return partial sums on the device of one of them; those in messages come to it."""
        device = next((part.device for part in parts if part.is_cuda), None)
        return parts if device is None else [part.to(device, non_blocking=True) for part in parts]

    def store_copy(self, block: int) -> None:
        """Copy a complete sum to the arena, if a peer reads it there."""
        if not self.private and not self._layout.is_buffers(block):
            self.pin((0,))
            view_block = self._layout.view_block
            view_block(self._arenas[0].tensors, block).copy_(view_block(self.tensors[0], block))

    def share(self, slots: Iterable[int], complete: AbstractSet[int], *, copied: bool) -> None:
        """Make all sums readable for others: the worker is not alone any more, or a peer reads no rooms."""
        if self.alone and self._is_gpu:
            # Blocks of a lone worker are announced before the device has added them.
            torch.cuda.synchronize(self._layout.device)
        self.alone = False
        if copied:
            super().share(slots, complete, copied=copied)
