"""A process of a simulated gang other than process 0: it performs the orders of that one in its own time."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol, TypeAlias, cast

import msgspec

from elastane.run.nouns.membership import WorkerId
from elastane.run.protocol import actions, events, messages
from elastane.run.protocol.gangs import Result, StateRestored
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.protocol.tree import Span
from tests.run.simulator.exchange import Exchange
from tests.run.simulator.memory import Memory
from tests.run.simulator.network import Payload
from tests.run.simulator.process import WorkerProcess
from tests.run.simulator.reads import Read
from tests.run.simulator.training import TrainingThread
from tests.run.simulator.worker import make_outcome, measure_state, restore_state
from tests.run.simulator.world import WorkerWorld

SLOT = -5
"""The key, in a payload, of the slot that a process has for a part."""
PIPE_S, RARE_S, RARE = 0.001, 0.03, 0.05
"""The longest delay of most messages between the processes of a gang, of the others, and their share."""


class Gang(Protocol):
    """Process 0 of a gang, as the others see it."""

    worker: WorkerId
    member: MemberMachine

    def guard(self, callback: Callable[[], None]) -> Callable[[], None]: ...
    def die(self, code: int = -9) -> None: ...
    def find_process(self, number: int) -> WorkerProcess: ...
    def count_rehearsed(self) -> None: ...
    def take_result(self, process: int, result: Result) -> None: ...
    def finish_delivery(self, process: int, *, is_readable: bool) -> None: ...
    def take_packed(self, process: int, payload: Payload) -> None: ...


class Delivery(NamedTuple):
    """A message of a peer for a process: the part of the payload that concerns it."""

    sender: WorkerId
    message: messages.AnyPeerMessage
    payload: Payload
    is_answered: bool


class Pack(NamedTuple):
    """An order to pack the state that a peer fetches."""

    fetch: messages.Fetch


Order: TypeAlias = actions.Action | Delivery | Pack


class Pipe:
    """The connection of two processes of a gang, in one direction: it delivers in order."""

    def __init__(self, world: WorkerWorld) -> None:
        self._clock = world.clock
        self._arrives_s = 0.0

    def send(self, deliver: Callable[[], None]) -> None:
        chance = self._clock.random
        longest_s = RARE_S if chance.random() < RARE else PIPE_S
        self._arrives_s = max(self._arrives_s, self._clock.now + chance.random() * longest_s)
        self._clock.schedule_at(self._arrives_s, deliver)


class ProcessesOfNumber(Mapping[WorkerId, WorkerProcess]):
    """The processes with one number, by the numbers of their gangs."""

    def __init__(self, world: WorkerWorld, number: int) -> None:
        self._world, self._number = world, number

    def __getitem__(self, worker: WorkerId) -> WorkerProcess:
        return self._world.workers[worker].find_process(self._number)

    def __iter__(self) -> Iterator[WorkerId]:
        return iter(self._world.workers)

    def __len__(self) -> int:
        return len(self._world.workers)


class Plane:
    """The world as the processes with one number see it: the peers are those with the same number."""

    def __init__(self, world: WorkerWorld, number: int) -> None:
        self._world = world
        self.workers = ProcessesOfNumber(world, number)

    def __getattr__(self, name: str) -> object:
        return getattr(self._world, name)


class Follower(WorkerProcess):
    """A process of a gang other than process 0.

    Args:
        gang: the worker.
        number: of this process, from 1.
        world: the parts that the worker can reach.
        slowness: the factor on the durations of its virtual ranks.

    Attributes:
        fuse: the number of orders that it still performs before it dies; None: unlimited.
    """

    def __init__(self, gang: Gang, number: int, world: WorkerWorld, slowness: float) -> None:
        # As in a real process: it knows the number of the worker, and gets no events.
        member = MemberMachine(gang.worker, world.shape.layout, make_outcome(world.origin))
        memory = Memory(world.checker.reference, world.shape.layout.together)
        super().__init__(gang.worker, world, slowness, memory, member)
        self.number = number
        self.fuse: int | None = None
        self._gang, self.world = gang, world
        self._exchange = Exchange(gang.worker, cast(WorkerWorld, Plane(world, number)), memory, member)
        self._training = TrainingThread(self, world, None, number)
        self._orders, self._answers = Pipe(world), Pipe(world)
        self._slots: dict[tuple[WorkerId, int, int, tuple[Span, ...]], int] = {}
        self._round = 0
        self.schedule(self.draw_duration(world.pace.start_s) + 0.05, self._finish_rehearsal)

    def _finish_rehearsal(self) -> None:
        self.answer(self._gang.count_rehearsed)
        shape = self.world.shape
        self._training.enter("train" if self.member.step < shape.steps else "settle")

    def answer(self, take: Callable[[], None]) -> None:
        """Send something to process 0, which then calls ``take``."""
        self._answers.send(self._gang.guard(take))

    def handle(self, event: events.Event) -> None:
        """Post a result to process 0."""
        assert isinstance(event, Result), "the protocol, in process 0, gets all other events itself"
        self.post(event)

    def post(self, result: Result) -> None:
        """Post a result to process 0."""
        self.answer(lambda: self._gang.take_result(self.number, result))

    def report(self) -> None:
        """Do nothing: process 0 reports."""

    def receive(self, sender: WorkerId, message: messages.AnyPeerMessage, payload: Payload) -> None:
        raise AssertionError("messages come to process 0")

    def handle_lost_peer(self, peer: WorkerId) -> None:
        raise AssertionError("process 0 has the connections")

    def die(self, code: int = -9, *, hung: bool = False, silent: bool = False) -> None:
        """End the process; a moment later the agent ends the others."""
        if self.alive:
            self.alive = False
            self.world.narrate(lambda: f"process {self.number} of worker {self.worker} dies")
            noticed_s = self.world.peer_network.draw_delay()
            self.world.clock.schedule_after(noticed_s, lambda: self._gang.die(code))

    # -- orders ------------------------------------------------------------------------------------------

    def order(self, order: Order) -> None:
        """Receive an order of process 0, a moment later."""
        self._orders.send(self.guard(lambda: self._receive_order(order)))

    def _receive_order(self, order: Order) -> None:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.die()
                return
        self._perform(order)

    def _perform(self, order: Order) -> None:
        match order:
            case Delivery(sender, message, payload, is_answered):
                is_readable = self._can_read(sender, message, payload)
                if is_answered:
                    self.answer(lambda: self._gang.finish_delivery(self.number, is_readable=is_readable))
            case Pack(fetch):
                payload = self._exchange.pack_state(fetch)
                self.answer(lambda: self._gang.take_packed(self.number, payload))
            case actions.LoadState():
                self._begin_read(self._exchange.load(order))
            case actions.Reduce():
                self._begin_read(self._exchange.reduce(self._find_parts(order)))
            case actions.TakeSums():
                self._begin_read(self._exchange.take_sums(order))
            case actions.TakeValues():
                self._begin_read(self._exchange.take_values(order))
            case actions.BeginRound(round=round_, step=step):
                self._round = round_
                self._know_step(step - 1)
                self._training.begin(order)
            case actions.Compute():
                self._training.compute(order)
            case actions.Measure():
                keeps = self._gang.member.keeps_state_of
                self.schedule(
                    self.draw_duration(self.world.pace.measure_s),
                    lambda: self.post(measure_state(self.memory, self.world, order, keeps)),
                )
            case actions.TakeSnapshot(request=request):
                took_s = self.draw_duration(self.world.pace.leaf_s)
                self.schedule(took_s, lambda: self.post(events.SnapshotTaken(request)))
            case actions.RestoreState():
                state = restore_state(self.memory, self.world, order)
                self.schedule(0.001, lambda: self.post(StateRestored(state)))
            case actions.CommitRound(outcome=outcome):
                self.member.outcome = outcome
                self._slots = {key: slot for key, slot in self._slots.items() if key[2] > outcome.round}
                self._training.finish_round(order)
            case actions.ReleaseScript():
                self._training.continue_script()
            case actions.LeaveTraining():
                self.state = "leaving"
                self._training.leave()
            case _:
                raise AssertionError(f"{order} is no order")

    def _know_step(self, step: int) -> None:
        """A process of a joiner learns of the steps of the others when its first round begins."""
        if self.member.step != step:
            self.member.outcome = msgspec.structs.replace(messages.BEGINNING, step=step)

    def _can_read(self, sender: WorkerId, message: messages.AnyPeerMessage, payload: Payload) -> bool:
        """Take a message's memory, and return whether that was possible."""
        if isinstance(message, messages.PartialSumsReady):
            parts = tuple(
                msgspec.structs.replace(part, slot=payload[SLOT, place])
                for place, part in enumerate(message.parts)
            )
            for part in parts:
                key = (sender, message.generation, message.round, part.spans)
                self._slots[key] = part.slot
            message = msgspec.structs.replace(message, parts=parts)
        self._exchange.store_payload(sender, payload)
        return can_read(self._exchange, sender, message)

    def _find_parts(self, order: actions.Reduce) -> actions.Reduce:
        """Return an order with the slots that the processes of this number have for the parts."""

        def find_slot(worker: WorkerId, spans: tuple[Span, ...]) -> int:
            if worker == self.worker:
                return self.memory.find_slot(spans[0])
            return self._slots[worker, order.generation, self._round, spans]

        parts = {
            worker: tuple(msgspec.structs.replace(part, slot=find_slot(worker, part.spans)) for part in some)
            for worker, some in order.parts.items()
        }
        return msgspec.structs.replace(order, parts=parts)

    def _begin_read(self, read: Read) -> None:
        takes_s = self.world.draw_read_time()
        self.schedule(takes_s, lambda: self.handle(read.end()))


def can_read(exchange: Exchange, sender: WorkerId, message: messages.AnyPeerMessage) -> bool:
    """Return whether a process can read the memory of a message: its owner lives, or it has mapped it."""
    if isinstance(message, messages.State):
        return exchange.world.workers[sender].alive
    return exchange.is_readable(sender, message)
