"""The placement of the model's tensors: in the memory that peers read, or on a device with a mirror there.

Sums, votes, digests and all exchange between workers use host memory: arenas that peers on this machine read.
On the CPU the model trains in the arena itself (`InPlace`); in a run of rounds beside it (`Separated`),
because inner steps change the parameters while peers read the committed ones. On a GPU it trains in device
memory and the arena is a mirror (`Mirrored`). Partial sums are copied to the host (`slot_memory`), and
complete sums to the device before the optimizer runs. Values are copied to the device when a peer has
computed them, and to the host before a peer reads them.

If workers share a GPU, they can read each other's sums and values on it instead (`rooms`). The arena is then
for files and for other peers.

The protocol orders reads and writes by events that the two threads of a worker post. That order holds on a
device too: every copy to the host is complete when the call returns, and the reactor thread's stream waits
for the optimizer's kernels before it uses anything.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

import torch

from elastane.run.worker.state.devices import SideStream, register_host_memory
from elastane.run.worker.state.gpu_memory import find_device_memory
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.room_slots import RoomSlots
from elastane.run.worker.state.rooms import Rooms
from elastane.run.worker.state.shared_memory import Arena
from elastane.run.worker.state.slot_memory import (
    HostSlots,
    Sections,
    SumsOnDevice,
    allocate_on_device,
    choose_slots,
    has_room_for,
)

View: TypeAlias = Callable[[Sections], torch.Tensor]


class InPlace:
    """The placement on the CPU: parameters are views of the arena, and nothing is copied.

    Attributes:
        arena: the memory that peers read: all parameters, and the committed values of all buffers.
        values: the sections on which the model and the optimizer work.
        slots: the memory in which gradients are added.
        rooms: the memory of the device that peers read; None: they read none.
        side_stream: the stream of the thread that handles a round; None: there are no streams.
    """

    rooms: Rooms | None = None
    side_stream: SideStream | None = None

    def __init__(self, layout: ModelLayout) -> None:
        self.arena = Arena("values", layout.sections)
        self.values: Sections = self.arena.tensors
        self.slots = HostSlots(layout)

    @property
    def received(self) -> Sections:
        """The sections into which values of peers come first."""
        return self.arena.tensors

    def place_sums(self, sums: Sections, blocks: Iterable[int]) -> Sections:
        """Return the complete sums in memory that the optimizer can read."""
        return sums

    def allocate_sums(self, sums: Sections) -> Sections:
        """Return the memory that `place_sums` would return; it is all zeros if ``sums`` are."""
        return sums

    def allocate_frozen(self, frozen: Arena) -> Sections:
        """Return the memory in which the model has the parts of frozen parameters; here it is the arena's."""
        return frozen.tensors

    def copy_to_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return tensors of the model's device as tensors on the host; here they are the same tensors."""
        return list(tensors)

    def mark_changed(self, blocks: Iterable[int]) -> None:
        """Note that the optimizer, or the script, has changed the values of these blocks."""

    def update_arena(self, blocks: Iterable[int]) -> None:
        """Copy the values of these blocks to the arena, from which peers, digests and snapshots read them."""

    def update_model(self, view: View) -> None:
        """Copy new values from the arena to the model; ``view`` selects the values."""

    def end_receipt(self, view: View, blocks: Iterable[int]) -> None:
        """Complete the receipt of values, which are in `received`; ``view`` selects them."""

    def commit_values(self) -> None:
        """Copy all values to the arena, also those that the script has changed."""

    def mark_writes(self) -> None:
        """Let the reactor thread wait for the changes that this thread has queued on the device."""

    def synchronize(self) -> None:
        """Wait until the device has completed the work that this thread has queued."""

    def use_side_stream(self) -> AbstractContextManager[object]:
        """Return the context in which the reactor thread uses tensors of the model's device."""
        return nullcontext()


class Separated(InPlace):
    """The placement on the CPU of a run of rounds: the model has memory of its own beside the arena."""

    def __init__(self, layout: ModelLayout) -> None:
        super().__init__(layout)
        self._layout = layout
        self.values = allocate_on_device(layout, self.arena)
        # Blocks that have older values in the arena than in the model.
        self._stale: set[int] = set()

    def mark_changed(self, blocks: Iterable[int]) -> None:
        """Note that the optimizer, or the script, has changed the values of these blocks."""
        self._stale |= self._select_trained(blocks)

    def update_arena(self, blocks: Iterable[int]) -> None:
        """Copy the values of these blocks to the arena, from which peers, digests and snapshots read them."""
        for block in self._stale & self._select_trained(blocks):
            values = self._layout.view_block(self.arena.tensors, block)
            values.copy_(self._layout.view_block(self.values, block))
            self._stale.discard(block)

    def update_model(self, view: View) -> None:
        """Copy new values from the arena to the model; ``view`` selects the values."""
        view(self.values).copy_(view(self.arena.tensors))

    def end_receipt(self, view: View, blocks: Iterable[int]) -> None:
        """Complete the receipt of values, which are in `received`; ``view`` selects them."""
        self.update_model(view)

    def commit_values(self) -> None:
        """Copy all values to the arena, also those that the script has changed."""
        blocks = range(len(self._layout.blocks))
        self._stale |= self._select_trained(blocks)
        self.update_arena(blocks)

    def _select_trained(self, blocks: Iterable[int]) -> set[int]:
        return {block for block in blocks if not self._layout.is_buffers(block)}


class Mirrored(Separated):
    """The placement on a device, with the parameters and optimizer state; the arena is updated before reads.

    Buffers have no mirror: committed buffers are computed and stored on the host only.

    Args:
        layout: the layout of the model, with its device. On the CPU the mirror is other memory of the CPU,
            which differs from a GPU only in that copies are synchronous.
        in_rounds: inner steps change the values of the model, so peers read the arena only.
    """

    slots: SumsOnDevice
    side_stream: SideStream

    def __init__(self, layout: ModelLayout, *, in_rounds: bool = False) -> None:
        self._layout = layout
        self.arena = Arena("values", layout.sections)
        # Blocks that have older values in the arena than on the device.
        self._stale: set[int] = set()
        self.side_stream = SideStream(layout.device)
        self.slots: SumsOnDevice
        self.values: Sections
        self.rooms = None if in_rounds else open_rooms(layout)
        if self.rooms is None:
            self.values = allocate_on_device(layout, self.arena)
            self.slots = choose_slots(layout, self.side_stream)
        else:
            buffers = self.arena.tensors[layout.parameter_sections :]
            self.values = (*self.rooms.open(self.arena.fd), *buffers)
            self.slots = RoomSlots(layout, self.side_stream, self.rooms)
        if layout.device.type == "cuda":
            trained = self.arena.tensors[: layout.parameter_sections]
            register_host_memory(self.arena, trained, layout.device)

    @property
    def received(self) -> Sections:
        """The sections into which values of peers come first."""
        return self.arena.tensors if self.rooms is None else self.values

    def place_sums(self, sums: Sections, blocks: Iterable[int]) -> Sections:
        """Return the complete sums in memory that the optimizer can read.

        Args:
            sums: sections on the host.
            blocks: the blocks that the optimizer needs.
        """
        return self.slots.place_sums(self._select_trained(blocks))

    def allocate_sums(self, sums: Sections) -> Sections:
        """Return the memory that `place_sums` would return; it is zeros before the first round."""
        return self.slots.sums

    def allocate_frozen(self, frozen: Arena) -> Sections:
        """Return memory on the device for the parts of frozen parameters; the arena has copies of them."""
        return tuple(torch.zeros_like(section, device=self._layout.device) for section in frozen.tensors)

    def copy_to_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return copies on the host; the copies are complete on return."""
        copies = [tensor.to("cpu", non_blocking=True, copy=True) for tensor in tensors]
        if copies:
            self.synchronize()
        return copies

    def mark_changed(self, blocks: Iterable[int]) -> None:
        """Note that the optimizer, or the script, changes these values; its kernels may still run."""
        self.mark_writes()
        super().mark_changed(blocks)

    def end_receipt(self, view: View, blocks: Iterable[int]) -> None:
        """Complete the receipt of values, which are in `received`; ``view`` selects them.

        Args:
            blocks: of these values.
        """
        if self.rooms is None:
            super().end_receipt(view, blocks)
        else:
            self._stale |= self._select_trained(blocks)

    def mark_writes(self) -> None:
        """Let the reactor thread wait for the changes that this thread has queued on the device."""
        self.side_stream.mark_writes()

    def synchronize(self) -> None:
        """Wait until the device has completed the work that this thread has queued."""
        if self._layout.device.type == "cuda":
            torch.cuda.current_stream(self._layout.device).synchronize()

    def use_side_stream(self) -> AbstractContextManager[object]:
        """Return the context in which the reactor thread uses tensors of the model's device."""
        return self.side_stream.use()


Placement: TypeAlias = InPlace | Separated | Mirrored


def choose_placement(layout: ModelLayout, *, in_rounds: bool = False) -> Placement:
    """Choose `InPlace` on the CPU, or `Separated` in a run of rounds, and `Mirrored` elsewhere."""
    if layout.device.type != "cpu":
        return Mirrored(layout, in_rounds=in_rounds)
    return Separated(layout) if in_rounds else InPlace(layout)


def open_rooms(layout: ModelLayout) -> Rooms | None:
    """Return memory of the device that peers read; None: they read copies on the host."""
    memory = find_device_memory(layout.device)
    if memory is None or not has_room_for(layout):
        return None
    return Rooms(memory, layout.sections[: layout.parameter_sections])
