"""The exchange of sums, values and state between simulated workers, in frames or in shared memory."""

from collections.abc import Callable

from elastane.run.nouns.membership import WorkerId
from elastane.run.protocol import actions, events, messages
from elastane.run.protocol.layout import STORE
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.protocol.tree import Span
from tests.run.simulator.checkers import expect
from tests.run.simulator.memory import Memory, sum_parts
from tests.run.simulator.network import Payload
from tests.run.simulator.reads import Read, Source, fix_source
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

    def _find_sum(self, peer: WorkerId, slot: int, block: int) -> Source:
        """Return the source of a sum; only this worker changes its own, and not while it reads them."""
        if peer == self.worker:
            return fix_source(self.memory.read_slot(slot, block))
        if self.world.share_memory(self.worker, peer):
            expect((peer, slot) in self._mapped, f"worker {self.worker} reads memory that it has not mapped")
            memory = self.world.workers[peer].memory
            return lambda: memory.read_slot(slot, block)
        return fix_source(self._payloads[peer, slot, block])

    def _find_value(self, peer: WorkerId, unit: int, frame: int) -> Source:
        if self.world.share_memory(self.worker, peer) and unit != self.world.shape.rest:
            memory = self.world.workers[peer].memory
            return lambda: memory.parameters[unit]
        return fix_source(self._payloads[peer, frame, unit])

    # -- reads -------------------------------------------------------------------------------------------

    def reduce(self, order: actions.Reduce) -> Read:
        """Begin to sum the parts of some blocks."""
        spans, sources = self._find_parts(order.blocks, order.parts)

        def write(symbols: list[int]) -> events.Event:
            for number, block in enumerate(order.blocks):
                parts = list(zip(spans, symbols[number * len(spans) :], strict=False))
                self.memory.store_sum(block, sum_parts(parts, self.world.shape.layout.virtual_ranks))
            return events.Reduced(order.generation, order.blocks)

        read = Read(sources, write, self._plan_check_of_sums(order.blocks))
        self.memory.hide_sums(order.blocks)
        return read

    def merge(self, order: actions.MergeSums) -> Read:
        """Begin to merge the parts of a node; the rest has the same nodes for every block."""
        spans, sources = self._find_parts(order.blocks, order.parts)

        def write(symbols: list[int]) -> events.Event:
            left: tuple[messages.PartialSum, ...] = ()
            for number, block in enumerate(order.blocks):
                parts = list(zip(spans, symbols[number * len(spans) :], strict=False))
                left = self.memory.merge_node(block, parts)
            return events.SumsMerged(order.generation, order.blocks, left)

        return Read(sources, write)

    def _find_parts(
        self, blocks: tuple[int, ...], parts: dict[int, tuple[messages.PartialSum, ...]]
    ) -> tuple[list[Span], list[Source]]:
        """Return the node of each part, and the sources of all parts of the first block, then of the next."""
        found = [
            (peer, part.slot, span) for peer, some in parts.items() for part in some for span in part.spans
        ]
        sources = [self._find_sum(peer, slot, block) for block in blocks for peer, slot, _ in found]
        return [span for _, _, span in found], sources

    def take_sums(self, order: actions.TakeSums) -> Read:
        """Begin to copy whole sums of a peer."""

        def write(symbols: list[int]) -> events.Event:
            for block, symbol in zip(order.blocks, symbols, strict=True):
                self.memory.store_sum(block, symbol)
            return events.SumsTaken(order.generation, order.peer, order.blocks)

        sources = (self._find_sum(order.peer, 0, block) for block in order.blocks)
        read = Read(sources, write, self._plan_check_of_sums(order.blocks))
        self.memory.hide_sums(order.blocks)
        return read

    def _plan_check_of_sums(self, blocks: tuple[int, ...]) -> Callable[[int], None]:
        step = self.member.step + 1

        def check(torn: int) -> None:
            expected = self.world.checker.reference.compute_sums(step, self.member.round.left_out)
            # The sums of a step with a spoilt gradient are wrong; its spot check must find that in time.
            is_spoilt = any(worker.spoils for worker in self.world.checker.workers.values())
            for block in self.member.round.rooted.intersection(blocks):
                expect(
                    self.memory.slots[0][block] == expected[block] or is_spoilt,
                    f"worker {self.worker} has a {name_fault(torn)} sum of block {block} in step {step}",
                )

        return check

    def take_values(self, order: actions.TakeValues) -> Read:
        """Begin to copy values that a peer has published."""

        def write(symbols: list[int]) -> events.Event:
            for unit, symbol in zip(order.units, symbols, strict=True):
                self.memory.parameters[unit] = symbol
            return events.ValuesTaken(order.generation, order.peer, order.units)

        expected = self.world.checker.reference.applied[self.member.step]
        read = Read(
            [self._find_value(order.peer, unit, -1) for unit in order.units],
            write,
            lambda torn: self._check_values(order.units, expected, torn),
        )
        self.memory.hide_values(order.units)
        return read

    def load(self, order: actions.LoadState) -> Read:
        """Begin to load the state that a peer has sent."""
        peer, state = order.peer, order.state
        if peer == STORE:
            return Read((), lambda _symbols: events.StateLoaded(state))

        def write(symbols: list[int]) -> events.Event:
            for unit, symbol in zip(state.values, symbols, strict=False):
                self.memory.parameters[unit] = symbol
            for unit, symbol in zip(state.states, symbols[len(state.values) :], strict=True):
                self.memory.optimizer[unit] = symbol
            return events.StateLoaded(state)

        ideal, step = self.world.checker.reference, self.member.step
        expected = (ideal.parameters if self.memory.released else ideal.applied)[step]
        states = [fix_source(self._payloads[peer, -3, unit]) for unit in state.states]
        read = Read(
            [*(self._find_value(peer, unit, -2) for unit in state.values), *states],
            write,
            lambda torn: self._check_values(state.values, expected, torn),
        )
        self.memory.hide_values(state.values)
        return read

    def _check_values(self, units: tuple[int, ...], expected: list[int], torn: int) -> None:
        for unit in set(units) - self.member.behind:
            expect(
                self.memory.parameters[unit] == expected[unit],
                f"worker {self.worker} has a {name_fault(torn)} value of unit {unit} "
                f"after step {self.member.step}",
            )

    # -- state -------------------------------------------------------------------------------------------

    def pack_state(self, fetch: messages.Fetch) -> Payload:
        """Return the payload with the state that a peer fetches."""
        memory = self.memory
        payload: Payload = {(-2, unit): memory.parameters[unit] for unit in fetch.values}
        for unit in fetch.states:
            state = memory.optimizer[unit]
            if state is None:
                raise AssertionError(
                    f"worker {self.worker} is asked for state of unit {unit}, which it lacks"
                )
            payload[-3, unit] = state
        return payload


def build_state(fetch: messages.Fetch, reports: bytes) -> messages.State:
    """Return the answer to a request for state."""
    return messages.State(
        generation=fetch.generation,
        committed=fetch.committed,
        values=fetch.values,
        states=fetch.states,
        reports=reports,
    )


def name_fault(torn: int) -> str:
    return "torn" if torn else "wrong"
