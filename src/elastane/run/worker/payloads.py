"""The exchange of sums, values and state between workers: in payloads, or in each other's memory.

Workers on one machine map each other's arenas, or rooms, and read sums and values in place. They send only
state outside of these. To workers on other machines, and with the transport ``tcp``, everything travels in
the payloads of messages, which the transport ``nixl`` reads in the memory of the sender.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import TypeAlias

import torch

from elastane.run.protocol import actions, events, messages
from elastane.run.protocol.layout import STORE
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.protocol.tree import Span
from elastane.run.worker.links.frames import Buffer, Payload
from elastane.run.worker.links.handshake import Process
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.state.payload import unpack_state
from elastane.run.worker.state.shared_memory import PeerArenas, SharedMessage, read_shared_message
from elastane.run.worker.state.tensor_bytes import raw_bytes
from elastane.run.worker.state.training_state import TrainingState
from elastane.run.worker.state.wire_formats import WireFormat, pack_tensors, unpack_tensors
from elastane.run.worker.work_queue import Work

Term: TypeAlias = tuple[tuple[Span, ...], torch.Tensor, bool]
"""A partial sum of a block: its virtual ranks, its elements, and whether this worker may write to them."""


class Payloads:
    """The payloads that this worker sends with its messages, and those that it has received from its peers.

    Args:
        find_process: returns the process of a connected peer that shares its memory; None: payloads travel
            with the messages between it and this worker.
    """

    def __init__(
        self,
        gradients: Gradients,
        state: TrainingState,
        member: MemberMachine,
        find_process: Callable[[int], Process | None],
    ) -> None:
        self._gradients, self._state, self._member = gradients, state, member
        self._find_process = find_process
        # The workers from which messages came: a lost peer has no connection any more.
        self._processes: dict[int, Process | None] = {}
        self._rooms = state.placement.rooms
        self._peer_arenas = PeerArenas(gradients.layout.sections)
        self._states: dict[tuple[int, messages.State], Payload] = {}
        self._parts: dict[tuple[int, int, int, int], list[torch.Tensor]] = {}
        self._sums: dict[tuple[int, int, int, int], torch.Tensor] = {}
        self._values: dict[tuple[int, int, int], torch.Tensor] = {}
        self._sent_messages: list[SharedMessage] = []
        self.round = 0

    # -- to peers ------------------------------------------------------------------------------------------

    def build(self, peer: int, message: messages.AnyPeerMessage) -> list[Buffer] | None:
        """Return the payload of a message; None: it has none, or the peer reads this worker's memory."""
        process = self._find_process(peer)
        if isinstance(message, messages.Published):
            self._show_values(process, message.units)
        if process is not None:
            return None
        layout = self._gradients.layout
        match message:
            case messages.PartialSumsReady(blocks=blocks, parts=parts):
                slots = [self._gradients.slots.find_sections(part.slot) for part in parts]
                partial_sums = [layout.view_block(slot, block) for block in blocks for slot in slots]
                return pack_tensors(partial_sums, self._gradients.slots.wire)
            case messages.SumsReady(blocks=blocks):
                sums = [layout.view_block(self._gradients.slots.sums, block) for block in blocks]
                return pack_tensors(sums, self._gradients.slots.wire)
            case messages.Published(units=units):
                tensors = self._state.arena.tensors
                return [raw_bytes(self._state.view_values(unit, tensors)) for unit in units]
            case _:
                return None

    def build_state(self, peer: int, values: tuple[int, ...], states: tuple[int, ...]) -> list[Buffer]:
        """Return the payload with the values of some units and the optimizer state of others."""
        process = self._find_process(peer)
        self._show_values(process, values)
        if process is None:
            return self._state.pack(values, states)
        # A peer on this machine reads it in place, before the round commits.
        payload = self._state.pack(self._select_sent(values), states)
        message = SharedMessage(payload)
        self._sent_messages.append(message)
        return [message.address]

    def _show_values(self, process: Process | None, units: tuple[int, ...]) -> None:
        """Wait until a peer can read the values of units where it will look for them."""
        if self._reads_rooms(process):
            self._state.settle_values()
        else:
            self._state.update_arena(units)

    def _reads_rooms(self, process: Process | None) -> bool:
        """Return whether a peer and this worker read each other's rooms."""
        return process is not None and self._rooms is not None and self._rooms.can_read(process)

    def has_reader_of_arenas(self, peers: Iterable[int]) -> bool:
        """Return whether a peer reads copies of sums on the host, or gets them in messages."""
        return not all(self._reads_rooms(self._find_process(peer)) for peer in peers)

    def list_arenas(self) -> list[memoryview]:
        """Return the memory of all arenas that payloads are made of; it stays until this process ends."""
        slots = self._gradients.slots
        return [memoryview(arena.memory) for arena in (*slots.arenas, *slots.node_arenas, self._state.arena)]

    def _select_sent(self, units: tuple[int, ...]) -> tuple[int, ...]:
        """Return the units with values to send to a peer that reads the arena: the replicated state."""
        replicated = self._state.units - 1
        return tuple(unit for unit in units if unit == replicated)

    # -- from peers ----------------------------------------------------------------------------------------

    def receive(self, sender: int, message: messages.AnyPeerMessage, payload: Payload) -> None:
        """Keep the payload of a message, or make sure that the memory it refers to can be read.

        Raises:
            OSError: the sender is dead, or this worker has exhausted a resource.
            ValueError: the payload does not fit the message: the sender is broken.
        """
        if sender not in self._processes:
            self._processes[sender] = self._find_process(sender)
        process = self._processes[sender]
        if isinstance(message, messages.State):
            state = payload if process is None else memoryview(read_shared_message(process.pid, payload))
            unpack_state(state)  # raises now, while the message can still be refused
            self._states[sender, message] = state
        if process is None:
            self._keep(sender, message, payload)
        else:
            self._map(process, message)

    def _keep(self, sender: int, message: messages.AnyPeerMessage, payload: Payload) -> None:
        match message:
            case messages.PartialSumsReady(generation=generation, round=round_, blocks=blocks, parts=parts):
                wire = self._gradients.slots.wire
                tensors = iter(self._cut(payload, [b for b in blocks for _ in parts], wire))
                for block in blocks:
                    kept = self._parts.setdefault((sender, generation, round_, block), [])
                    kept += [next(tensors) for _ in parts]
            case messages.SumsReady(generation=generation, round=round_, blocks=blocks):
                cut = self._cut(payload, list(blocks), self._gradients.slots.wire)
                for block, sums_ in zip(blocks, cut, strict=True):
                    self._sums[sender, generation, round_, block] = sums_
            case messages.Published(round=round_, units=units):
                for unit, values_ in zip(units, self._cut(payload, list(units)), strict=True):
                    self._values[sender, round_, unit] = values_
            case _:
                pass

    def _map(self, process: Process, message: messages.AnyPeerMessage) -> None:
        match message:
            case messages.PartialSumsReady(parts=parts):
                needed = [part.slot for part in parts]
            case messages.SumsReady():
                needed = [process.sums]
            case messages.Published() | messages.State():
                needed = [process.values]
            case _:
                needed = []
        for fd in needed:
            self._map_sections(process, fd)

    def _map_sections(self, process: Process, fd: int) -> tuple[torch.Tensor, ...]:
        """Return the sections of a peer by the descriptor of the arena, in its room if that exists."""
        arena = self._peer_arenas.map_sections(process.pid, fd)
        if self._rooms is None or not self._rooms.can_read(process):
            return arena
        room = self._rooms.map(process, fd)
        return arena if room is None else (*room, *arena[len(room) :])

    def _cut(self, payload: Payload, blocks: list[int], wire: WireFormat | None = None) -> list[torch.Tensor]:
        layout = self._gradients.layout
        chosen = [layout.blocks[number] for number in blocks]
        kinds = [(block.elements, layout.sections[block.section].dtype) for block in chosen]
        return unpack_tensors(payload, kinds, wire)

    # -- work for the queue --------------------------------------------------------------------------------

    def reduce(self, order: actions.Reduce) -> Work:
        """Return the work of adding up partial sums of blocks: this worker's and those of its peers."""
        slots = self._gradients.slots
        # The sum replaces this worker's own part.
        terms = [
            (block, self._find_terms(block, order.generation, order.parts, own_writable=True))
            for block in order.blocks
        ]

        def perform() -> events.Event:
            for block, parts in terms:
                slots.reduce(block, parts)
            return events.Reduced(order.generation, order.blocks)

        roots = [slots.find_root(block) for block in order.blocks]
        return Work(perform, roots, self._select_foreign(order.parts, terms), private=slots.is_alone)

    def merge(self, order: actions.MergeSums) -> Work:
        """Return the work of merging the partial sums that the workers of this node have of some blocks."""
        slots = self._gradients.slots
        terms = [
            (block, self._find_terms(block, order.generation, order.parts, own_writable=False))
            for block in order.blocks
        ]

        def perform() -> events.Event:
            left: tuple[messages.PartialSum, ...] = ()
            for block, parts in terms:
                # The virtual ranks are the same for all blocks, and so are the parts that are left.
                left = slots.merge_node(block, parts)
            return events.SumsMerged(order.generation, order.blocks, left)

        left_here = [part for block in order.blocks for part in slots.list_node_parts(block)]
        return Work(perform, left_here, self._select_foreign(order.parts, terms))

    def _select_foreign(
        self, parts: dict[int, tuple[messages.PartialSum, ...]], terms: Sequence[tuple[int, Sequence[Term]]]
    ) -> list[torch.Tensor]:
        """Return the elements of the parts of other workers."""
        foreign = [worker != self._member.worker for worker, some in parts.items() for _ in some]
        return [tensor for _, some in terms for (_, tensor, _) in compress(some, foreign)]

    def _find_terms(
        self,
        block: int,
        generation: int,
        parts: dict[int, tuple[messages.PartialSum, ...]],
        *,
        own_writable: bool,
    ) -> list[Term]:
        """Return of each part its virtual ranks, its elements, and whether this worker may write to them."""
        terms = []
        for worker, partial_sums in parts.items():
            tensors = self._find_parts(worker, block, generation, partial_sums)
            writable = own_writable if worker == self._member.worker else self._processes[worker] is None
            for part, tensor in zip(partial_sums, tensors, strict=True):
                terms.append((part.spans, tensor, writable))
        return terms

    def _find_parts(
        self, worker: int, block: int, generation: int, parts: Sequence[messages.PartialSum]
    ) -> list[torch.Tensor]:
        """Return the elements of a worker's parts of a block, as announced in a generation."""
        layout = self._gradients.layout
        if worker == self._member.worker:
            own = [self._gradients.slots.memory.find_own_sections(part.slot) for part in parts]
            return [layout.view_block(sections, block) for sections in own]
        if (process := self._processes[worker]) is None:
            return self._parts.pop((worker, generation, self.round, block))
        there = [self._map_sections(process, part.slot) for part in parts]
        return [layout.view_block(slot, block) for slot in there]

    def take_sums(self, order: actions.TakeSums) -> Work:
        """Return the work of storing the sums of blocks that a peer has computed."""
        slots = self._gradients.slots
        found = [(block, self._find_sum(order.peer, block)) for block in order.blocks]

        def perform() -> events.Event:
            for block, sums in found:
                slots.store_sum(block, sums)
            return events.SumsTaken(order.generation, order.peer, order.blocks)

        roots = [slots.find_root(block) for block in order.blocks]
        return Work(perform, roots, [sums for _, sums in found])

    def _find_sum(self, peer: int, block: int) -> torch.Tensor:
        if (process := self._processes[peer]) is not None:
            return self._gradients.layout.view_block(self._map_sections(process, process.sums), block)
        return self._sums.pop((peer, self._generation, self.round, block))

    def take_values(self, order: actions.TakeValues) -> Work:
        """Return the work of storing the values that units have on a peer after the last committed round."""
        found = [(unit, self._find_values(order.peer, unit)) for unit in order.units]

        def perform() -> events.Event:
            self._store_values(found)
            return events.ValuesTaken(order.generation, order.peer, order.units)

        own = self._view_own_values(order.units)
        return Work(perform, own, [values for _, values in found])

    def _find_values(self, peer: int, unit: int) -> torch.Tensor:
        if (process := self._processes[peer]) is not None:
            return self._state.view_values(unit, self._map_sections(process, process.values))
        return self._values.pop((peer, self._member.committed, unit))

    def _store_values(self, found: Sequence[tuple[int, torch.Tensor]]) -> None:
        for unit, values in found:
            self._state.store_values(unit, values)

    def _view_own_values(self, units: Iterable[int]) -> list[torch.Tensor]:
        return [self._state.view_values(unit, self._state.placement.received) for unit in units]

    def load_state(self, order: actions.LoadState) -> Work:
        """Return the work of loading the values and the optimizer state that a peer has sent."""
        peer, state = order.peer, order.state
        if peer == STORE:  # state from a checkpoint is read in place
            return Work(lambda: events.StateLoaded(state), private=True)
        payload = self._states.pop((peer, state))
        values = set(state.values) - set(self._select_sent(state.values))
        reads = self._processes[peer] is not None
        found = [(unit, self._find_values(peer, unit)) for unit in values] if reads else []

        def perform() -> events.Event:
            self._state.unpack(payload)
            self._store_values(found)
            return events.StateLoaded(state)

        return Work(perform, self._view_own_values(values), [there for _, there in found])

    @property
    def _generation(self) -> int:
        return self._member.generation.number if self._member.generation else 0

    def forget(self, committed: int) -> None:
        """Drop the payloads that no worker needs after this round has committed."""
        self._sent_messages.clear()
        self._parts = {key: parts for key, parts in self._parts.items() if key[2] > committed}
        self._sums = {key: sums for key, sums in self._sums.items() if key[2] > committed}
        self._values = {key: values for key, values in self._values.items() if key[1] >= committed}
        self._states = {key: state for key, state in self._states.items() if key[1].committed >= committed}
