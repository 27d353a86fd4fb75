"""The exchange of sums, values and state between simulated workers, in frames or in shared memory."""

from elastane.run.nouns.membership import WorkerId
from elastane.run.protocol import messages
from elastane.run.protocol.layout import STORE
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.protocol.tree import Span
from tests.run.simulator.checkers import expect
from tests.run.simulator.memory import Memory, sum_parts
from tests.run.simulator.network import Payload
from tests.run.simulator.reference_run import get_reference
from tests.run.simulator.world import WorkerWorld


class Exchange:
    """One worker's side of the exchange.

    Args:
        worker: the number of the worker.
        world: the parts that the worker can reach, with its peers.
        memory: the memory of the worker.
        member: knows which step is committed.
    """

    def __init__(self, worker: WorkerId, world: WorkerWorld, memory: Memory, member: MemberMachine) -> None:
        self.worker, self.world = worker, world
        self.memory, self.member = memory, member
        self._payloads: dict[tuple[int, ...], int] = {}
        self._mapped: set[tuple[WorkerId, int]] = set()

    def store_payload(self, sender: WorkerId, payload: Payload) -> None:
        """Keep the payload of a frame until it is used."""
        for key, value in payload.items():
            self._payloads[sender, *key] = value

    def build_payload(self, peer: WorkerId, message: messages.AnyPeerMessage) -> Payload:
        """Return the payload of a frame; empty if the peer reads this worker's memory."""
        if self.world.share_memory(self.worker, peer):
            return {}
        slots = self.memory.slots
        match message:
            case messages.PartialSumsReady(blocks=blocks, parts=parts):
                return {(p.slot, b): self.memory.read_slot(p.slot, b) for p in parts for b in blocks}
            case messages.SumsReady(blocks=blocks):
                return {(0, block): slots[0][block] for block in blocks}
            case messages.Published(units=units):
                return {(-1, unit): self.memory.parameters[unit] for unit in units}
            case _:
                return {}

    def is_readable(self, sender: WorkerId, message: messages.AnyPeerMessage) -> bool:
        """Return whether the memory of a message can be opened, which its owner must live for."""
        match message:
            case messages.PartialSumsReady(parts=parts):
                needed = {(sender, part.slot) for part in parts}
            case messages.SumsReady():
                needed = {(sender, 0)}
            case messages.Published():
                needed = {(sender, -1)}
            case _:
                return True
        if not (needed <= self._mapped or self.world.workers[sender].alive):
            return False
        self._mapped |= needed
        return True

    def _read_sum(self, peer: WorkerId, slot: int, block: int) -> int:
        if peer == self.worker:
            return self.memory.read_slot(slot, block)
        if self.world.share_memory(self.worker, peer):
            return self.world.workers[peer].memory.read_slot(slot, block)
        return self._payloads[peer, slot, block]

    def _read_value(self, peer: WorkerId, unit: int) -> int:
        if self.world.share_memory(self.worker, peer):
            return self.world.workers[peer].memory.parameters[unit]
        return self._payloads[peer, -1, unit]

    def reduce(self, blocks: tuple[int, ...], parts: dict[int, tuple[messages.PartialSum, ...]]) -> None:
        for block in blocks:
            values = self._read_parts(block, parts)
            self._store_sum(block, sum_parts(values, self.world.shape.layout.virtual_ranks))

    def merge(
        self, blocks: tuple[int, ...], parts: dict[int, tuple[messages.PartialSum, ...]]
    ) -> tuple[messages.PartialSum, ...]:
        """Merge the parts of a node; return what is left, which is the same for every block."""
        left: tuple[messages.PartialSum, ...] = ()
        for block in blocks:
            left = self.memory.merge_node(block, self._read_parts(block, parts))
        return left

    def _read_parts(
        self, block: int, parts: dict[int, tuple[messages.PartialSum, ...]]
    ) -> list[tuple[Span, int]]:
        return [
            (span, self._read_sum(peer, part.slot, block))
            for peer, some in parts.items()
            for part in some
            for span in part.spans
        ]

    def _store_sum(self, block: int, total: int) -> None:
        self.memory.store_sum(block, total)
        step = self.member.step + 1
        expected = get_reference(self.world.shape).sums[step][block]
        # The sums of a step with a spoilt gradient are wrong; its spot check must find that before a commit.
        is_spoilt = any(worker.spoils for worker in self.world.checker.workers.values())
        expect(
            total == expected or is_spoilt,
            f"worker {self.worker} has a wrong sum of block {block} in step {step}",
        )

    def send_state(self, peer: WorkerId, fetch: messages.Fetch, reports: bytes) -> None:
        memory = self.memory
        payload: Payload = {(-2, unit): memory.parameters[unit] for unit in fetch.values}
        for unit in fetch.states:
            state = memory.optimizer[unit]
            if state is None:
                raise AssertionError(
                    f"worker {self.worker} is asked for state of unit {unit}, which it lacks"
                )
            payload[-3, unit] = state
        message = messages.State(
            generation=fetch.generation,
            committed=fetch.committed,
            values=fetch.values,
            states=fetch.states,
            reports=reports,
        )
        self.world.trace(lambda: f"worker {self.worker} serves {peer}: {message}")
        self.world.peer_network.send(self.worker, peer, message, payload)

    def load(self, peer: WorkerId, state: messages.State) -> None:
        if peer == STORE:
            return
        ideal, step = get_reference(self.world.shape), self.member.step
        expected = (ideal.parameters if self.memory.released else ideal.applied)[step]
        for unit in state.values:
            value = self._payloads[peer, -2, unit]
            expect(
                value == expected[unit],
                f"worker {self.worker} loads a wrong value of unit {unit} after step {step}",
            )
            self.memory.parameters[unit] = value
        for unit in state.states:
            self.memory.optimizer[unit] = self._payloads[peer, -3, unit]

    def take_sums(self, peer: WorkerId, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            self._store_sum(block, self._read_sum(peer, 0, block))

    def take_values(self, peer: WorkerId, units: tuple[int, ...]) -> None:
        for unit in units:
            self.memory.parameters[unit] = self._read_value(peer, unit)
            expect(
                self.memory.parameters[unit]
                == get_reference(self.world.shape).applied[self.member.step][unit],
                f"worker {self.worker} takes a wrong value of unit {unit} after step {self.member.step}",
            )
