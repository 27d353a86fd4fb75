"""A process of a gang other than process 0: it performs the orders of that one, and posts its results."""

import os
import queue
import threading
from collections.abc import Callable

from elastane.common.errors import ElastaneError
from elastane.run.nouns.control import CheckpointPart
from elastane.run.nouns.spec import Probe
from elastane.run.protocol import actions, events, messages
from elastane.run.protocol.gangs import Result, StateRestored
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.worker.exhaustion import find_exhausted_resource
from elastane.run.worker.gangs.gang_messages import (
    Deliver,
    Delivered,
    EndWorker,
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
    decode_order,
)
from elastane.run.worker.gangs.gang_payloads import GangPayloads
from elastane.run.worker.gangs.gang_pipe import GangPipe, has_lost_process
from elastane.run.worker.reactor import (
    Directive,
    Reactor,
    ReactorFailure,
    ResultPosted,
    restore_state,
)
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.state.training_state import TrainingState


class HeadLink:
    """The connection of a process to process 0 of its gang, from the beginning of its script on.

    Args:
        descriptor: of the socket to process 0.
        dismiss: called when the worker is dismissed.
    """

    def __init__(self, descriptor: int, dismiss: Callable[[EndWorker], None]) -> None:
        self._pipe = GangPipe(descriptor)
        self._dismiss = dismiss
        self._failure_taken = threading.Event()
        self.orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._pipe.read(decode_order, self._handle)

    def send(self, message: FromProcess) -> None:
        """Send a message to process 0."""
        self._pipe.send(message)

    def has_lost_process(self) -> bool:
        """Return whether process 0 has ended, or does so within a moment."""
        return has_lost_process([self._pipe])

    def _handle(self, order: Order) -> None:
        match order:
            case EndWorker():
                self._dismiss(order)
            case FailureTaken():
                self._failure_taken.set()
            case _:
                self.orders.put(order)

    def report_failure(self, traceback: str, *, lost: bool, timeout_s: float) -> None:
        """Report that the script has failed here, and wait until process 0 has passed it on."""
        self._pipe.send(ScriptFailed(traceback, lost))
        self._failure_taken.wait(timeout_s)


class FollowingReactor(Reactor):
    """Performs the orders of process 0; the training thread uses it like any other reactor.

    Args:
        member: knows the number of the worker; it gets no events.
        link: to process 0.
    """

    def __init__(
        self,
        member: MemberMachine,
        gradients: Gradients,
        state: TrainingState,
        *,
        measure_norms: bool,
        link: HeadLink,
    ) -> None:
        super().__init__(member, gradients, state, measure_norms=measure_norms)
        self._link = link
        self._payloads = self._gang_payloads = GangPayloads(gradients, state, member)
        self._begins_alone = False
        link.send(Introduced(describe_plane(gradients, state)))
        threading.Thread(target=self._perform_orders, name="elastane-reactor", daemon=True).start()

    def _answer_now(self, answer: events.Event) -> None:
        self.post(answer)

    def post(self, event: events.Event) -> None:
        if isinstance(event, events.RoundEntered):
            self._entered = event
        assert isinstance(event, Result), "the protocol, in process 0, gets all other events itself"
        self._link.send(Posted(event))

    def post_result(self, event: events.Event) -> None:
        self.post(event)

    def post_late_result(self, event: events.Event) -> None:
        self.post(event)

    def report_rehearsed(self, probe: Probe | None) -> None:
        """Report that this process is ready for the first round."""
        self._link.send(Rehearsed(probe))

    def take_directive(self, timeout_s: float) -> Directive | None:
        try:
            directive = self.directives.get(block=timeout_s > 0, timeout=timeout_s or None)
        except queue.Empty:
            return None
        assert not isinstance(directive, ResultPosted), "each thread posts its own results here"
        return directive

    def _has_no_peers(self) -> bool:
        return self._begins_alone

    def _perform_orders(self) -> None:
        while True:
            try:
                self._perform(self._link.orders.get())
            except ElastaneError as error:
                # Such as a checkpoint that cannot be read: the run fails with these words.
                self.directives.put(ReactorFailure(error))

    def _perform(self, order: Order) -> None:
        match order:
            case Deliver(sender, message, plane, is_answered):
                is_readable = can_read(self._gang_payloads, sender, message, plane)
                if is_answered:
                    self._link.send(Delivered(is_readable))
            case PackState(peer, values, states):
                self._link.send(StatePacked(self._gang_payloads.pack_state(peer, values, states)))
            case EndWorker() | FailureTaken():
                raise AssertionError("the link handles it")
            case actions.RestoreState():
                self.post_restored(order)
            case actions.BeginRound(workers=workers):
                self._begins_alone = workers == 1
                self._act(order)
            case _:
                self._act(order)

    def post_restored(self, order: actions.RestoreState) -> None:
        """Read this process's part of the state from the checkpoint of the run's start."""
        assert self.source is not None, "only a run that resumes restores"
        restored = StateRestored(restore_state(self.source, order))
        self._link.send(Posted(restored))

    def report_parts(self, parts: tuple[CheckpointPart, ...]) -> None:
        """Report the progress of this process with its files of checkpoints."""
        self._link.send(PartsChanged(parts))


def describe_plane(gradients: Gradients, state: TrainingState) -> Plane:
    """Return the memory of this process that peers read."""
    frozen = -1 if state.frozen is None else state.frozen.fd
    return Plane(os.getpid(), gradients.slots.sums_fd, state.arena.fd, frozen)


def can_read(payloads: GangPayloads, sender: int, message: messages.AnyPeerMessage, plane: Plane) -> bool:
    """Take a message's memory, and return whether that was possible: its owner may be dead, or broken.

    Raises:
        OSError: this process has exhausted a resource.
    """
    try:
        payloads.take(sender, message, plane)
    except (OSError, ValueError, LookupError) as error:
        if find_exhausted_resource(error) is not None:
            raise
        return False
    return True
