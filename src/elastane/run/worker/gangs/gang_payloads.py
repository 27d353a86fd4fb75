"""The memory that processes of the same number in two gangs read of each other."""

import mmap
from collections.abc import Sequence

import msgspec
import torch

from elastane.run.protocol import messages
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.protocol.tree import Span
from elastane.run.worker.gangs.gang_messages import Plane
from elastane.run.worker.links.frames import Payload
from elastane.run.worker.links.handshake import Process
from elastane.run.worker.links.memory_mark import MARK_BYTES
from elastane.run.worker.payloads import Payloads
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.state.payload import unpack_state
from elastane.run.worker.state.shared_memory import read_shared_message
from elastane.run.worker.state.training_state import TrainingState

MEMORY_MESSAGES = (messages.PartialSumsReady, messages.SumsReady, messages.Published, messages.State)
"""The messages that refer to memory of their sender."""
SHARED = Process(pid=0, sums=0, values=0, mark_fd=0, mark=bytes(MARK_BYTES))
"""In place of a peer's process before its first message: all of them share memory with this process."""


class GangPayloads(Payloads):
    """The exchange of one process of a gang with the processes of its number in other gangs.

    A part is the same node of the tree in all processes of a gang, but it may be in another slot in each.
    """

    def __init__(self, gradients: Gradients, state: TrainingState, member: MemberMachine) -> None:
        super().__init__(gradients, state, member, lambda _peer: SHARED)
        self._slots: dict[tuple[int, int, int, tuple[Span, ...]], int] = {}

    def receive(self, sender: int, message: messages.AnyPeerMessage, payload: Payload) -> None:
        """Do nothing: `take` has made sure that the memory can be read."""

    def take(self, sender: int, message: messages.AnyPeerMessage, plane: Plane) -> None:
        """Make sure that the memory to which a message refers can be read from now on.

        Raises:
            OSError: the sender is dead, or this worker has exhausted a resource.
            ValueError: the memory does not fit the message: the sender is broken.
        """
        there = msgspec.structs.replace(SHARED, pid=plane.pid, sums=plane.sums, values=plane.values)
        self._processes[sender] = there
        match message:
            case messages.State():
                state: mmap.mmap = read_shared_message(plane.pid, plane.state)
                unpack_state(memoryview(state))  # raises now, while the message can still be refused
                self._states[sender, message] = memoryview(state)
                self._map(there, message)
            case messages.PartialSumsReady(generation=generation, round=round_, parts=parts):
                for part, slot in zip(parts, plane.slots, strict=True):
                    self._slots[sender, generation, round_, part.spans] = slot
                    self._peer_arenas.map_sections(plane.pid, slot)
            case _:
                self._map(there, message)

    def pack_state(self, peer: int, values: Sequence[int], states: Sequence[int]) -> bytes:
        """Pack state for the process of this number in another gang; return its address."""
        (address,) = self.build_state(peer, tuple(values), tuple(states))
        return bytes(address)

    def _find_parts(
        self, worker: int, block: int, generation: int, parts: Sequence[messages.PartialSum]
    ) -> list[torch.Tensor]:
        layout, slots = self._gradients.layout, self._gradients.slots
        if worker == self._member.worker:
            own = [slots.memory.find_own_sections(slots.find_slot(part.spans)) for part in parts]
            return [layout.view_block(sections, block) for sections in own]
        process = self._processes[worker]
        assert process is not None, "gangs read each other's memory"
        found = [self._slots[worker, generation, self.round, part.spans] for part in parts]
        return [layout.view_block(self._peer_arenas.map_sections(process.pid, slot), block) for slot in found]

    def forget(self, committed: int) -> None:
        super().forget(committed)
        self._slots = {key: slot for key, slot in self._slots.items() if key[2] > committed}
