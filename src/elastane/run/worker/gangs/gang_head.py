"""Process 0 of a gang: it has the protocol of the worker, and orders the others to do what it does itself.

An event counts when all processes have posted it (`elastane.run.protocol.gangs`). Before the protocol learns
of a message that refers to memory, every process has mapped the memory of its counterpart: mapped memory can
be read although its owner has died, so an order to read it is always carried out.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import msgspec
import xxhash

from elastane.common.errors import RunFailed
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Malformed
from elastane.run.nouns.control import CheckpointPart
from elastane.run.nouns.spec import Probe
from elastane.run.protocol import actions, events, messages
from elastane.run.protocol.gangs import Deliveries, GangDisagreement, GangResults, Result, StateRestored
from elastane.run.protocol.layout import STORE
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.worker.gangs.gang_follower import can_read, describe_plane
from elastane.run.worker.gangs.gang_messages import (
    Deliver,
    Delivered,
    FailureTaken,
    FromProcess,
    Introduced,
    Order,
    PackState,
    PartsChanged,
    Plane,
    Posted,
    Rehearsed,
    ScriptFailed,
    StatePacked,
    decode_from_process,
    decode_planes,
    encode_message,
)
from elastane.run.worker.gangs.gang_payloads import MEMORY_MESSAGES, GangPayloads
from elastane.run.worker.gangs.gang_pipe import LOOK_S, GangPipe, has_lost_process
from elastane.run.worker.links.frames import Payload
from elastane.run.worker.links.mesh import Mesh
from elastane.run.worker.reactor import CoordinatorSink, Reactor, ReportKeeper, restore_state
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.state.training_state import TrainingState


class GangLinks:
    """The connections of process 0 to the other processes of its gang.

    Args:
        descriptors: of the sockets, in the order of the processes.
        report_failure: called, in a thread of its own, when a script has failed in a process.
        report_change: called after a change of `parts`.

    Attributes:
        received: the messages of the processes that the protocol has not taken yet, each with its number.
        wake: called after a message.
        parts: the progress of each other process with its files of checkpoints.
    """

    def __init__(
        self,
        descriptors: tuple[int, ...],
        report_failure: Callable[[ScriptFailed], None],
        report_change: Callable[[], None],
    ) -> None:
        self._report_failure, self._report_change = report_failure, report_change
        self.parts: dict[int, tuple[CheckpointPart, ...]] = {}
        self.received: deque[tuple[int, FromProcess]] = deque()
        self.wake: Callable[[], None] = lambda: None
        self._pipes = [GangPipe(descriptor) for descriptor in descriptors]
        for number, pipe in enumerate(self._pipes, start=1):
            pipe.read(decode_from_process, partial(self._take, number))

    @property
    def processes(self) -> int:
        """The number of processes of the gang, this one included."""
        return len(self._pipes) + 1

    def has_lost_process(self) -> bool:
        """Return whether one of the other processes has ended, or does so within a moment."""
        return has_lost_process(self._pipes)

    def send(self, order: Order) -> None:
        """Send an order to all other processes."""
        for pipe in self._pipes:
            pipe.send(order)

    def send_each(self, orders: list[Order]) -> None:
        """Send one order to each other process."""
        for pipe, order in zip(self._pipes, orders, strict=True):
            pipe.send(order)

    def _take(self, number: int, message: FromProcess) -> None:
        if isinstance(message, ScriptFailed):
            # If a process has ended, its collectives have failed in the others, which is only a consequence.
            if not self.has_lost_process():
                self._report_failure(message)
                self._pipes[number - 1].send(FailureTaken())
            return
        if isinstance(message, PartsChanged):
            self.parts[number] = message.parts
            self._report_change()
            return
        self.received.append((number, message))
        self.wake()


Memory: TypeAlias = tuple[int, int]
"""A process, and the descriptor of an arena there."""
FromPeer: TypeAlias = tuple[int, messages.AnyPeerMessage | None, Payload]
"""A peer, and a message of it; None: the connection to it is lost."""


def decode_gang(payload: Payload, processes: int) -> tuple[Plane, ...]:
    """Return the memory of every process of a peer, from the payload of its message.

    Raises:
        Malformed: the payload says something else.
    """
    planes = decode_planes(bytes(payload))
    if len(planes) != processes:
        raise Malformed(f"it names {len(planes)} processes")
    return planes


def _list_memory(message: messages.AnyPeerMessage, planes: Sequence[Plane]) -> frozenset[Memory] | None:
    """Return the arenas that a message refers to; None: it refers to memory of its own, too."""
    match message:
        case messages.State():
            return None
        case messages.PartialSumsReady():
            return frozenset((plane.pid, slot) for plane in planes for slot in plane.slots)
        case messages.SumsReady():
            return frozenset((plane.pid, plane.sums) for plane in planes)
        case _:
            return frozenset((plane.pid, plane.values) for plane in planes)


class _StateOnTheWay:
    """State that the processes pack for a peer."""

    def __init__(self, peer: int, state: messages.State, own: bytes) -> None:
        self.peer, self.state = peer, state
        self.addresses: dict[int, bytes] = {0: own}


class HeadReactor(Reactor):
    """Drives the protocol of a gang.

    Args:
        links: to the other processes.
        sharing: the number of processes that compute each virtual rank together.
    """

    def __init__(
        self,
        member: MemberMachine,
        gradients: Gradients,
        state: TrainingState,
        *,
        measure_norms: bool,
        mesh: Mesh | None,
        coordinator: CoordinatorSink | None,
        reports: ReportKeeper | None,
        links: GangLinks,
        sharing: int = 1,
    ) -> None:
        assert mesh is not None, "a run without peers has no gangs"
        self._links = links
        self._results = GangResults(links.processes, sharing)
        self._gang_payloads = GangPayloads(gradients, state, member)
        self._planes: dict[int, Plane] = {0: describe_plane(gradients, state)}
        self._probes: dict[int, Probe | None] = {}
        self._all_ready = threading.Event()
        self._all_ended = threading.Event()
        self._deliveries: Deliveries[FromPeer] = Deliveries(links.processes)
        self._states_on_the_way: deque[_StateOnTheWay] = deque()
        super().__init__(
            member,
            gradients,
            state,
            measure_norms=measure_norms,
            mesh=mesh,
            coordinator=coordinator,
            reports=reports,
        )
        self._payloads = self._gang_payloads
        links.wake = mesh.wake
        mesh.wake()

    def gather_probes(self, own: Probe | None) -> Probe | None:
        """Wait until every process has rehearsed; return the probe of the whole gang."""
        self._all_ready.wait()
        return combine_probes([own, *(self._probes[number] for number in sorted(self._probes))])

    def find_final_planes(self) -> list[Plane]:
        """Wait until the script has ended in every process; return their memory, in their order.

        Raises:
            RunFailed, StateLost: the reactor has failed meanwhile.
        """
        while not self._all_ended.wait(LOOK_S):
            self.raise_failure()
        return self._find_planes()

    def _find_planes(self) -> list[Plane]:
        return [self._planes[number] for number in range(self._links.processes)]

    # -- events in -----------------------------------------------------------------------------------------

    def _is_alone(self) -> bool:
        # Results of other processes come to the reactor's thread.
        return False

    def _drain(self) -> None:
        while self._events or self._links.received:
            if self._events:
                self._handle_next()
            else:
                self._take_from_process(*self._links.received.popleft())

    def _handle_next(self) -> None:
        event = self._events.popleft()
        if isinstance(event, Result):
            self._take_result(0, event)
        else:
            self._handle(event)

    def _take_result(self, process: int, result: Result) -> None:
        for event in self._combine(process, result):
            self._handle(_build_event(event))
            if isinstance(event, events.ScriptEnded):
                self._all_ended.set()

    def _answer_now(self, answer: events.Event | StateRestored) -> None:
        assert isinstance(answer, Result), "work on sums and state has results"
        self._answers.extend(map(_build_event, self._combine(0, answer)))

    def _combine(self, process: int, result: Result) -> list[Result]:
        try:
            return self._results.add(process, result)
        except GangDisagreement as error:
            raise RunFailed(
                f"in worker {self.member.worker} {error}", means=error.means, do=error.do
            ) from None

    def _take_from_process(self, process: int, message: FromProcess) -> None:
        match message:
            case Posted(result):
                self._take_result(process, result)
            case Introduced(plane):
                self._planes[process] = plane
            case Rehearsed(probe):
                self._probes[process] = probe
                if len(self._probes) == self._links.processes - 1:
                    self._all_ready.set()
            case Delivered(is_readable):
                if self._deliveries.answer(process, is_readable=is_readable):
                    self._handle_delivered()
                    self._deliver_all()
            case StatePacked(address):
                self._take_packed_state(process, address)
            case ScriptFailed() | PartsChanged():
                raise AssertionError("the links report it")

    # -- messages of peers ---------------------------------------------------------------------------------

    def _receive(self, sender: int, message: messages.AnyPeerMessage, payload: Payload) -> None:
        with self._handling:
            self._deliveries.add((sender, message, payload))
            self._deliver_all()

    def _handle_lost_peer(self, peer: int) -> None:
        with self._handling:
            self._deliveries.add((peer, None, memoryview(b"")))
            self._deliver_all()

    def _deliver_all(self) -> None:
        while (first := self._deliveries.find_next()) is not None:
            sender, message, payload = first
            if isinstance(message, MEMORY_MESSAGES) and not self._deliver(sender, message, payload):
                return
            self._handle_delivered()

    def _handle_delivered(self) -> None:
        (sender, message, payload), is_readable = self._deliveries.take()
        if message is None:
            self._handle(events.ConnectionLost(sender))
        elif is_readable:
            self._handle_message(sender, message, payload)

    def _deliver(self, sender: int, message: messages.AnyPeerMessage, payload: Payload) -> bool:
        """Pass a message on to all processes; return whether none of them has to answer."""
        assert self._mesh is not None, "messages come from the mesh"
        try:
            planes = decode_gang(payload, self._links.processes)
        except Malformed as error:
            problem = f"its {type(message).__name__} cannot be read: {escape_line(str(error))}"
            sys.stderr.write(f"elastane mesh: worker {sender} is broken: {problem}\n")
            self._mesh.disown(sender)
            self._deliveries.refuse()
            return True
        memory = _list_memory(message, planes)
        is_known = self._deliveries.are_mapped(memory)
        self._links.send_each(
            [Deliver(sender, message, plane, is_answered=not is_known) for plane in planes[1:]]
        )
        if not can_read(self._gang_payloads, sender, message, planes[0]):
            self._deliveries.refuse()
        if not is_known:
            self._deliveries.begin(memory)
        return is_known

    # -- actions out ---------------------------------------------------------------------------------------

    def _act(self, action: actions.Action) -> None:
        match action:
            case (
                actions.LoadState()
                | actions.Reduce()
                | actions.TakeSums()
                | actions.TakeValues()
                | actions.BeginRound()
                | actions.Compute()
                | actions.Measure()
                | actions.CommitRound()
                | actions.ReleaseScript()
                | actions.LeaveTraining()
            ):
                self._links.send(action)
                super()._act(action)
            case actions.Send(peer, message):
                self._send_with_planes(peer, message)
            case actions.SendState(peer, fetch):
                self._pack_state(peer, fetch)
            case actions.TakeSnapshot() if action.settled and self.checkpoints is not None:
                # Whether the state is still the one that all agreed on, only all processes together can say.
                self.checkpoints.refuse(action, "a worker of several processes does not write it again")
            case actions.TakeSnapshot():
                self._links.send(action)
                super()._act(action)
            case actions.RestoreState():
                self._links.send(action)
                assert self.source is not None, "only a run that resumes restores"
                self._answer_now(StateRestored(restore_state(self.source, action)))
            case actions.MergeSums() | actions.Recompute():
                raise AssertionError(f"a gang has no {type(action).__name__} yet: see `check_gang`")
            case _:
                super()._act(action)

    def _send_with_planes(self, peer: int, message: messages.AnyPeerMessage) -> None:
        if not isinstance(message, MEMORY_MESSAGES):
            self._send(peer, message, None)
            return
        planes = self._find_planes()
        if isinstance(message, messages.PartialSumsReady):
            slots = [self._results.find_slots(part.spans) for part in message.parts]
            planes = [
                msgspec.structs.replace(plane, slots=tuple(some[number] for some in slots))
                for number, plane in enumerate(planes)
            ]
        self._send(peer, message, [encode_message(planes)])

    def _pack_state(self, peer: int, fetch: messages.Fetch) -> None:
        handed = self._reports.hand_over() if fetch.needs_reports and self._reports is not None else b""
        state = messages.State(
            generation=fetch.generation,
            committed=fetch.committed,
            values=fetch.values,
            states=fetch.states,
            reports=handed,
        )
        self._links.send(PackState(peer, fetch.values, fetch.states))
        own = self._gang_payloads.pack_state(peer, fetch.values, fetch.states)
        self._states_on_the_way.append(_StateOnTheWay(peer, state, own))

    def _take_packed_state(self, process: int, address: bytes) -> None:
        """Take the answer of a process to the first order that it has not answered."""
        waiting = next(one for one in self._states_on_the_way if process not in one.addresses)
        waiting.addresses[process] = address
        while self._states_on_the_way:
            first = self._states_on_the_way[0]
            if len(first.addresses) < self._links.processes:
                return
            self._states_on_the_way.popleft()
            planes = [
                msgspec.structs.replace(plane, state=first.addresses[number])
                for number, plane in enumerate(self._find_planes())
            ]
            self._send(first.peer, first.state, [encode_message(planes)])


def _build_event(result: Result) -> events.Event:
    """Return the event of the protocol for a result of all processes."""
    return events.Received(STORE, result.state) if isinstance(result, StateRestored) else result


def combine_probes(probes: Sequence[Probe | None]) -> Probe | None:
    """Return the probe of a gang, from those of its processes in their order; None: they are not compared."""
    first = probes[0]
    made = [probe for probe in probes if probe is not None]
    if first is None:
        return None
    return msgspec.structs.replace(
        first,
        values=xxhash.xxh3_128_hexdigest(" ".join(probe.values for probe in made).encode()),
        result=xxhash.xxh3_128_hexdigest(" ".join(probe.result for probe in made).encode()),
    )
