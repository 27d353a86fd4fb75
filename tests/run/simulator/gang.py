"""A simulated worker of several processes (a gang): process 0 has the protocol, and orders the others.

The code under test decides when an event of a gang counts (`GangResults`) and when a message of a peer does
(`Deliveries`). The shell here follows the rules of the real one: an order goes to all processes, in the order
of the orders, and each process answers in its own time. Process i of a gang reads the memory of process i of
the others. All have the same symbols, so each can be checked by itself.

A process that dies takes its gang with it, but only when the agent has noticed it; until then process 0 goes
on with what the others have answered.
"""

from collections import deque

from elastane.run.nouns.membership import WorkerId
from elastane.run.protocol import actions, events, messages
from elastane.run.protocol.gangs import Deliveries, GangResults, Result, StateRestored
from elastane.run.protocol.layout import STORE
from tests.run.simulator.checkers import expect
from tests.run.simulator.gang_process import SLOT, Delivery, Follower, Pack, can_read
from tests.run.simulator.network import Payload
from tests.run.simulator.process import WorkerProcess
from tests.run.simulator.worker import SimWorker
from tests.run.simulator.world import WorkerWorld

ORDERS = (
    actions.LoadState,
    actions.Reduce,
    actions.TakeSums,
    actions.TakeValues,
    actions.BeginRound,
    actions.Compute,
    actions.Measure,
    actions.CommitRound,
    actions.ReleaseScript,
    actions.LeaveTraining,
    actions.TakeSnapshot,
    actions.RestoreState,
)
"""The actions that every process of a gang performs."""
WITH_MEMORY = (messages.PartialSumsReady, messages.SumsReady, messages.Published, messages.State)


class _Packing:
    """State that the processes pack for a peer."""

    def __init__(self, peer: WorkerId, state: messages.State, own: Payload) -> None:
        self.peer, self.state = peer, state
        self.payloads: dict[int, Payload] = {0: own}


class SimGang(SimWorker):
    """A worker of several processes; this is its process 0, with the followers.

    Args:
        worker: the number of the worker.
        world: the parts that it can reach.
        slowness: the factor on the durations of its virtual ranks.
    """

    def __init__(self, worker: WorkerId, world: WorkerWorld, slowness: float = 1.0) -> None:
        processes = world.shape.layout.together
        self._results = GangResults(processes)
        self._deliveries: Deliveries[tuple[WorkerId, messages.AnyPeerMessage | None, Payload]]
        self._deliveries = Deliveries(processes)
        self._packings: deque[_Packing] = deque()
        self._rehearsed = 0
        super().__init__(worker, world, slowness)
        self.followers = [
            Follower(self, number, world, 1.0 + world.clock.random.random() * (slowness - 1.0))
            for number in range(1, processes)
        ]

    def find_process(self, number: int) -> WorkerProcess:
        """Return the process with this number."""
        return self if number == 0 else self.followers[number - 1]

    def die(self, code: int = -9, *, hung: bool = False, silent: bool = False) -> None:
        """End all processes."""
        if self.alive:
            for follower in self.followers:
                follower.alive = False
        super().die(code, hung=hung, silent=silent)

    # -- results -----------------------------------------------------------------------------------------

    def finish_rehearsal(self) -> None:
        """Enter the first round when all processes are ready for it."""
        self.count_rehearsed()

    def count_rehearsed(self) -> None:
        """Count a process that is ready for the first round."""
        self._rehearsed += 1
        if self._rehearsed == len(self.followers) + 1:
            super().finish_rehearsal()

    def pass_on(self, event: events.Event) -> None:
        """Pass an event on to the member; a result only when all processes have posted it."""
        for combined in self._results.add(0, event) if isinstance(event, Result) else [event]:
            self._pass_on_for_all(combined)

    def take_result(self, process: int, result: Result) -> None:
        """Take the result of another process."""
        for combined in self._results.add(process, result):
            self._pass_on_for_all(combined)
            self.settle()

    def take_restored(self, state: messages.State) -> None:
        """Pass the state of the run's start on to the member, when all processes have it."""
        self.take_result(0, StateRestored(state))

    def _pass_on_for_all(self, result: Result | events.Event) -> None:
        if not self.alive:
            return
        event = events.Received(STORE, result.state) if isinstance(result, StateRestored) else result
        super().pass_on(event)
        self._check_sums()

    def _check_sums(self) -> None:
        """Check that every process has the sums that the gang counts as whole: it is never half counted."""
        rooted, step = self.member.round.rooted, self.member.step + 1
        if not rooted:
            return
        expected = self.world.checker.reference.sums[step]
        for follower in self.followers:
            sums = follower.memory.slots[0]
            lacking = [block for block in rooted if sums.get(block) != expected[block]]
            expect(
                not lacking,
                f"worker {self.worker} counts sums of blocks {lacking} in step {step} that its process "
                f"{follower.number} lacks",
            )

    # -- messages of peers -------------------------------------------------------------------------------

    def _receive(self, sender: WorkerId, message: messages.AnyPeerMessage, payload: Payload) -> None:
        self._deliveries.add((sender, message, payload))
        self._deliver_all()

    def take_loss(self, peer: WorkerId) -> None:
        """Pass the loss of a peer on to the member, after what it sent before."""
        self._deliveries.add((peer, None, {}))
        self._deliver_all()

    def _deliver_all(self) -> None:
        while self.alive and (first := self._deliveries.find_next()) is not None:
            sender, message, payload = first
            if isinstance(message, WITH_MEMORY) and not self._deliver(sender, message, payload):
                return
            self._handle_delivered()

    def _deliver(self, sender: WorkerId, message: messages.AnyPeerMessage, payload: Payload) -> bool:
        """Pass a message on to all processes; return whether none of them has to answer."""
        memory = _list_memory(sender, message, payload, len(self.followers) + 1)
        is_known = self._deliveries.are_mapped(memory)
        for follower in self.followers:
            own = _select(payload, follower.number)
            follower.order(Delivery(sender, message, own, is_answered=not is_known))
        if not can_read(self._exchange, sender, message):
            self._deliveries.refuse()
        if not is_known:
            self._deliveries.begin(memory)
        return is_known

    def finish_delivery(self, process: int, *, is_readable: bool) -> None:
        """Take the answer of a process to a delivery."""
        if self._deliveries.answer(process, is_readable=is_readable):
            self._handle_delivered()
            self._deliver_all()

    def _handle_delivered(self) -> None:
        (sender, message, payload), is_readable = self._deliveries.take()
        if message is None:
            super().take_loss(sender)
        elif is_readable:
            self.take_message(sender, message, _select(payload, 0))

    # -- actions -----------------------------------------------------------------------------------------

    def perform(self, action: actions.Action) -> None:
        """Perform an action of the member, in every process if it concerns the sums or the state."""
        match action:
            case actions.Send(peer, message) if isinstance(message, messages.PartialSumsReady):
                self.world.trace(lambda: f"worker {self.worker} sends {peer}: {message}")
                self.world.peer_network.send(self.worker, peer, message, self._name_slots(message))
            case actions.SendState(peer, fetch):
                for follower in self.followers:
                    follower.order(Pack(fetch))
                own = self._exchange.pack_state(fetch)
                self._packings.append(_Packing(peer, self.build_state(fetch), own))
            case actions.TakeSnapshot() if action.settled:
                super().perform(action)
            case _:
                if isinstance(action, ORDERS):
                    for follower in self.followers:
                        follower.order(action)
                super().perform(action)

    def _name_slots(self, message: messages.PartialSumsReady) -> Payload:
        found = [self._results.find_slots(part.spans) for part in message.parts]
        return {
            (process, SLOT, place): slot
            for place, slots in enumerate(found)
            for process, slot in enumerate(slots)
        }

    def take_packed(self, process: int, payload: Payload) -> None:
        """Take the answer of a process to the first order to pack state that it has not answered."""
        next(one for one in self._packings if process not in one.payloads).payloads[process] = payload
        while self._packings and len(self._packings[0].payloads) > len(self.followers):
            first = self._packings.popleft()
            whole = {(n, *key): value for n, some in first.payloads.items() for key, value in some.items()}
            self.send_state(first.peer, first.state, whole)


def _select(payload: Payload, process: int) -> Payload:
    """Return the part of a payload that concerns a process."""
    return {key[1:]: value for key, value in payload.items() if key[0] == process}


def _list_memory(
    sender: WorkerId, message: messages.AnyPeerMessage, payload: Payload, processes: int
) -> frozenset[tuple[int, ...]] | None:
    """Return the memory to which a message refers; None: it refers to memory of its own, too."""
    match message:
        case messages.State():
            return None
        case messages.PartialSumsReady():
            return frozenset((sender, process, slot) for (process, *_), slot in payload.items())
        case messages.SumsReady():
            return frozenset((sender, process, 0) for process in range(processes))
        case _:
            return frozenset((sender, process, -1) for process in range(processes))
