"""The thread that drives a worker's `MemberMachine`: it passes events to it and performs its actions.

The training thread only computes: it posts its results and takes directives. This thread sums, copies and
votes during the backward pass. While a worker has no peers, nothing is to be done during the backward pass,
and the training thread handles its results itself when it takes a directive: waking another thread twice for
each would take longer than the work. A process that trains alone (plain ``python``) has no such thread.
"""

import struct
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias

import msgspec

from elastane.common.errors import RunFailed, StateLost
from elastane.common.safe_text import escape_line
from elastane.run.nouns.control import FromWorker
from elastane.run.nouns.membership import Generation
from elastane.run.protocol import actions, events, messages
from elastane.run.protocol.layout import STORE
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.protocol.spot_checks import Finding
from elastane.run.worker.exhaustion import exit_for_replacement, find_exhausted_resource, find_own_exhaustion
from elastane.run.worker.links.frames import Buffer, Payload
from elastane.run.worker.links.handshake import Process
from elastane.run.worker.links.mesh import Mesh
from elastane.run.worker.links.traffic import TrafficMeter
from elastane.run.worker.payloads import Payloads
from elastane.run.worker.spot_checks import build_undecided_error, build_wrong_event, end_wrong_worker
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.state.placement import Placement
from elastane.run.worker.state.training_state import TrainingState
from elastane.run.worker.state_meter import StateMeter
from elastane.run.worker.work_queue import AtOnce, OnStream, Work, WorkQueue


class ReactorFailure(msgspec.Struct, frozen=True):
    """The end of the reactor, with the error that the training thread raises."""

    error: BaseException


class ResultPosted(msgspec.Struct, frozen=True):
    """No directive: the training thread has to look for results that another thread has posted for it."""


Directive: TypeAlias = (
    actions.BeginRound
    | actions.Compute
    | actions.Recompute
    | actions.CommitRound
    | actions.ReleaseScript
    | actions.LeaveTraining
    | ReactorFailure
)


RESULTS = (
    events.RoundEntered,
    events.PartialSumsFinal,
    events.Computed,
    events.Recomputed,
    events.Applied,
    events.Measured,
    events.SumsMerged,
    events.Reduced,
)
"""The events that follow from the training thread's work alone."""


class CoordinatorSink(Protocol):
    """The receiver of the reactor's reports to the coordinator."""

    def report_lost_peer(self, peer: int) -> None: ...
    def send(self, message: FromWorker) -> None: ...
    def request_report(self) -> None: ...


class ReportKeeper(Protocol):
    """The keeper of the reports that go from one worker to another with the state."""

    def hand_over(self) -> bytes: ...
    def take_over(self, handed: bytes) -> None: ...


class CheckpointSink(Protocol):
    """The receiver of the reactor's requests for checkpoints."""

    def copy_snapshot(self, snapshot: actions.TakeSnapshot) -> None: ...
    def refuse(self, snapshot: actions.TakeSnapshot, why: str) -> None: ...
    def commit(self) -> None: ...


class RestoreSource(Protocol):
    """The checkpoint from which a run resumes."""

    def restore(self, values: tuple[int, ...], states: tuple[int, ...]) -> None: ...


class Reactor:
    """Drives one worker's protocol.

    Args:
        measure_norms: votes carry norms, for clipping or for a scaler.
        mesh: the connections to the peers; None: the process trains alone.
        coordinator: receives reports; None: the process trains alone.
        reports: keeps the reports of steps; None: the process trains alone.

    Attributes:
        directives: the directives for the training thread.
        meter: measures this worker's part of the state.
        traffic: measures the bytes that cross between machines; None: the process trains alone.
        queue: the queue of the work on sums and state.
        checkpoints: writes this worker's part of checkpoints; None: the run has no checkpoints.
        source: the checkpoint from which the run resumes; None: the run started from nothing.
    """

    def __init__(
        self,
        member: MemberMachine,
        gradients: Gradients,
        state: TrainingState,
        *,
        measure_norms: bool,
        mesh: Mesh | None = None,
        coordinator: CoordinatorSink | None = None,
        reports: ReportKeeper | None = None,
    ) -> None:
        self.member = member
        self.directives: SimpleQueue[Directive | ResultPosted] = SimpleQueue()
        self.checkpoints: CheckpointSink | None = None
        self.source: RestoreSource | None = None
        self.meter = StateMeter(member, gradients, state, measure_norms=measure_norms)
        self._gradients = gradients
        self._state = state
        self._mesh = mesh
        self.traffic = None if mesh is None else TrafficMeter(member.worker, mesh.streams)
        self._coordinator, self._reports = coordinator, reports
        self._payloads = Payloads(
            gradients, state, member, _find_no_process if mesh is None else mesh.get_process
        )
        self._events: deque[events.Event] = deque()
        # Answers to the actions of the present event, which come before the next event.
        self._answers: deque[events.Event] = deque()
        self.queue = self._choose_queue(state.placement)
        self._addresses: dict[int, tuple[str, int]] = {}
        self._entered: events.RoundEntered | None = None
        # The last report: the generation, whether the worker is complete, and whether it has left.
        self._reported = (0, False, False)
        # The last proposed generation has this worker only.
        self._proposed_alone = False
        # Held by the thread that handles events.
        self._handling = threading.Lock()
        if mesh is not None:
            mesh.sums_fd, mesh.values_fd = gradients.slots.sums_fd, state.arena.fd
            if mesh.remote_memory is not None:
                mesh.remote_memory.lent.list_arenas = self._payloads.list_arenas
            if (rooms := state.placement.rooms) is not None:
                mesh.door, mesh.device = rooms.open_door(mesh.mark), rooms.identity
            threading.Thread(target=self._run, name="elastane-reactor", daemon=True).start()

    def _choose_queue(self, placement: Placement) -> WorkQueue:
        stream = placement.side_stream
        if placement.rooms is None or stream is None or not stream.is_gpu:
            return AtOnce(self._answer_now)
        return OnStream(self.post, self._answer_now, self._fail, stream)

    def _answer_now(self, answer: events.Event) -> None:
        """Take the answer of work that has ended before its action has; it comes before the next event."""
        self._answers.append(answer)

    def _fail(self, error: BaseException) -> None:
        self.directives.put(ReactorFailure(error))

    # -- events in -----------------------------------------------------------------------------------------

    def post(self, event: events.Event) -> None:
        """Pass an event to the member, from any thread."""
        self._events.append(event)
        if self._mesh is not None:
            self._mesh.wake()
        # Without a mesh the outermost call handles the events that its own actions post.
        elif self._handling.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._handling.release()

    def post_result(self, event: events.Event) -> None:
        """Pass an event of the training thread to the member, before the thread takes its next directive."""
        self._events.append(event)
        # A thread that ends the solitude handles all events afterwards, also this one.
        if not self._is_alone() and self._mesh is not None:
            self._mesh.wake()

    def post_late_result(self, event: events.Event) -> None:
        """Pass an event of the training thread, which may wait for a directive already, to the member."""
        self.post_result(event)
        self.directives.put(ResultPosted())

    def take_directive(self, timeout_s: float) -> Directive | None:
        """Return the next directive for the training thread; None: none has come in time.

        If this worker is alone, this handles the results of the training thread.

        Args:
            timeout_s: how long to wait, in seconds; 0: not at all, because there is work to do.
        """
        while True:
            if timeout_s and self.directives.empty() and self._is_alone():
                self._handle_results()
            try:
                directive = self.directives.get(block=timeout_s > 0, timeout=timeout_s or None)
            except Empty:
                return None
            if not isinstance(directive, ResultPosted):
                return directive

    def _handle_results(self) -> None:
        with self._ending_on_error(), self._handling:
            # Other events may need the mesh, which belongs to the reactor's thread; it is awake for them.
            while self._is_alone() and self._events:
                if self._mesh is not None and not isinstance(self._events[0], RESULTS):
                    break
                self._handle_next()

    def raise_failure(self) -> None:
        """Raise the error with which the reactor has ended; the training thread takes no directives any more.

        Raises:
            RunFailed, StateLost: the reactor has failed.
        """
        while not self.directives.empty():
            if isinstance(directive := self.directives.get(), ReactorFailure):
                raise directive.error

    def _is_alone(self) -> bool:
        """Return whether no other worker takes part or will do so soon, or is still connected."""
        if self._mesh is None:
            return True
        return self._proposed_alone and self._has_no_peers() and not self._mesh.peers

    def _has_no_peers(self) -> bool:
        """Return whether the generation has this worker only."""
        generation = self.member.generation
        return self._mesh is None or (generation is not None and len(generation.members) == 1)

    def _run(self) -> None:
        assert self._mesh is not None, "the thread runs only with peers"
        with self._ending_on_error():
            while True:
                self._mesh.poll(None, self._receive, self._handle_lost_peer)
                with self._handling:
                    self._drain()

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        """End the worker or the run on an error; the one place where an error of the protocol does so."""
        try:
            yield
        except BaseException as error:
            if self._mesh is None:
                raise
            if (resource := find_own_exhaustion(error)) is not None:
                # Exit at once: the script may catch an error that the training thread raises.
                exit_for_replacement("".join(traceback.format_exception(error)).rstrip(), resource)
            self.directives.put(ReactorFailure(error))

    def _drain(self) -> None:
        while self._events:
            self._handle_next()

    def _handle_next(self) -> None:
        event = self._events.popleft()
        # In a run of rounds a block crosses slow links while the next one is computed.
        if isinstance(event, events.PartialSumsFinal) and self._state.inner is None:
            event = _merge_with_following(event, self._events)
        self._handle(event)

    def _receive(self, sender: int, message: messages.AnyPeerMessage, payload: Payload) -> None:
        with self._handling:
            self._handle_message(sender, message, payload)

    def _handle_message(self, sender: int, message: messages.AnyPeerMessage, payload: Payload) -> None:
        assert self._mesh is not None, "messages come from the mesh"
        try:
            self._payloads.receive(sender, message, payload)
            if isinstance(message, messages.State) and message.reports and self._reports is not None:
                self._reports.take_over(message.reports)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            # The process has ended, and its memory is gone; the broken connection will show that.
            return
        except (OSError, ValueError, LookupError, struct.error) as error:
            if find_exhausted_resource(error) is not None:
                raise  # the sender lives, but this worker cannot take the message
            # A worker sends no such message unless it is broken, so it counts as dead.
            problem = f"its {type(message).__name__} cannot be read: {escape_line(str(error))}"
            sys.stderr.write(f"elastane mesh: worker {sender} is broken: {problem}\n")
            self._mesh.disown(sender)
            return
        self._handle(events.Received(sender, message))

    def _handle_lost_peer(self, peer: int) -> None:
        with self._handling:
            self._handle(events.ConnectionLost(peer))

    def _handle(self, event: events.Event) -> None:
        self._handle_one(event)
        while self._answers:
            self._handle_one(self._answers.popleft())

    def _handle_one(self, event: events.Event) -> None:
        match event:
            case events.RoundEntered():
                self._entered = event
            case (
                events.GenerationProposed(generation)
                | events.Received(message=messages.Proposal(proposed=generation))
            ):
                self._connect(generation)
            case _:
                pass
        for action in self.member.handle(event):
            self._act(action)
        status = self.member.works_in, self.member.complete, self.member.left
        if self._coordinator is not None and status != self._reported:
            self._reported = status
            self._coordinator.request_report()

    def _connect(self, generation: Generation) -> None:
        """Connect to all workers of a generation, before it begins."""
        if self._mesh is None or self.traffic is None:
            return
        self.traffic.place(generation)
        numbers = [member.worker for member in (*generation.members, *generation.leaving)]
        self._proposed_alone = numbers == [self.member.worker]
        for peer in (*generation.members, *generation.leaving):
            self._addresses[peer.worker] = (peer.host, peer.port)
            if self.member.worker in generation or any(
                self.member.worker == leaver.worker for leaver in generation.leaving
            ):
                self._mesh.dial(peer.worker, peer.host, peer.port)

    # -- actions out ---------------------------------------------------------------------------------------

    def _act(self, action: actions.Action) -> None:
        match action:
            case actions.Send(peer, message):
                self._send(peer, message, self._payloads.build(peer, message))
            case actions.SendState(peer, fetch):
                handed = (
                    self._reports.hand_over() if fetch.needs_reports and self._reports is not None else b""
                )
                state = messages.State(
                    generation=fetch.generation,
                    committed=fetch.committed,
                    values=fetch.values,
                    states=fetch.states,
                    reports=handed,
                )
                self._send(peer, state, self._payloads.build_state(peer, fetch.values, fetch.states))
            case actions.LoadState():
                self.queue.issue(self._payloads.load_state(action))
            case actions.Reduce():
                self.queue.issue(self._payloads.reduce(action))
            case actions.MergeSums():
                self.queue.issue(self._payloads.merge(action))
            case actions.TakeSums():
                self.queue.issue(self._payloads.take_sums(action))
            case actions.TakeValues():
                self.queue.issue(self._payloads.take_values(action))
            case actions.BeginRound():
                self._begin(action)
                self.directives.put(action)
            case actions.Compute() | actions.Recompute() | actions.ReleaseScript() | actions.LeaveTraining():
                self.directives.put(action)
            case actions.CommitRound():
                if self.checkpoints is not None:
                    self.checkpoints.commit()
                if self.traffic is not None:
                    self.traffic.end_step(self.member.works_in, action.outcome.step)
                self._payloads.forget(action.outcome.round)
                self.directives.put(action)
            case actions.TakeSnapshot():
                assert self.checkpoints is not None, "only a run with checkpoints takes snapshots"
                _take_snapshot(self.checkpoints, self.meter, action)
            case actions.RestoreState():
                assert self.source is not None, "only a run that resumes restores"
                self._answers.append(events.Received(STORE, restore_state(self.source, action)))
            case actions.Measure(request, norms, digests):
                self.queue.issue(Work(lambda: self.meter.measure(request, norms, digests), private=True))
            case actions.EndProcess():
                exit_for_replacement("the other workers made a step that this worker cannot apply any more")
            case actions.ReportLostPeer(peer):
                if self._coordinator is not None:
                    self._coordinator.report_lost_peer(peer)
            case actions.FailLostState(units):
                self.directives.put(ReactorFailure(_build_lost_state_error(units)))
            case actions.FailDisagreement(why):
                self.directives.put(ReactorFailure(_build_disagreement_error(why)))
            case actions.FailDivergence(why):
                self.directives.put(ReactorFailure(_build_divergence_error(why)))
            case actions.FailSpotCheck(finding):
                self._fail_spot_check(finding)

    def _fail_spot_check(self, finding: Finding) -> None:
        me, step, layout = self.member.worker, self.member.step + 1, self._gradients.layout
        if finding.wrong is None:
            self.directives.put(ReactorFailure(build_undecided_error(finding, step, layout)))
        elif finding.wrong == me:
            end_wrong_worker(finding, step, layout)
        elif self._coordinator is not None:
            self._coordinator.send(build_wrong_event(finding, me, step, layout))

    def _begin(self, begin: actions.BeginRound) -> None:
        assert self._entered is not None, "a round begins after it is entered"
        alone = self._has_no_peers()
        generation = self.member.generation
        members = () if generation is None else generation.members
        peers = [each.worker for each in members if each.worker != self.member.worker]
        copied = self._payloads.has_reader_of_arenas(peers)
        if begin.round != self._payloads.round:
            self._payloads.round = begin.round
            self._gradients.begin_round(self._entered.size, alone=alone, copied=copied)
            self._state.buffers.restore()
        elif not alone:
            self._gradients.slots.share(copied=copied)

    def _send(self, peer: int, message: messages.AnyPeerMessage, payload: list[Buffer] | None) -> None:
        assert self._mesh is not None, "nothing is sent alone"
        if peer in self._addresses:
            self._mesh.dial(peer, *self._addresses[peer])
        self._mesh.send(peer, message, payload)


def _merge_with_following(
    final: events.PartialSumsFinal, following: deque[events.Event]
) -> events.PartialSumsFinal:
    """Merge blocks that became final one after the other, so that one message announces them."""
    blocks = final.blocks
    while following and isinstance(event := following[0], events.PartialSumsFinal):
        if (event.assignment, event.parts) != (final.assignment, final.parts):
            break
        blocks += event.blocks
        following.popleft()
    return msgspec.structs.replace(final, blocks=blocks)


def _take_snapshot(checkpoints: CheckpointSink, meter: StateMeter, snapshot: actions.TakeSnapshot) -> None:
    """Copy this worker's part of the state, unless it is not the state of the last step."""
    if snapshot.settled and not snapshot.blocks:
        checkpoints.refuse(snapshot, "this worker does not have all of the blocks that it should write")
    elif snapshot.settled and not meter.is_unchanged(snapshot.blocks):
        checkpoints.refuse(snapshot, "the script has changed the state since the last step")
    else:
        checkpoints.copy_snapshot(snapshot)


def restore_state(source: RestoreSource, restore: actions.RestoreState) -> messages.State:
    """Load state from the checkpoint, and return the message of its arrival."""
    source.restore(restore.values, restore.states)
    return messages.State(
        generation=restore.generation,
        committed=restore.committed,
        values=restore.values,
        states=restore.states,
    )


def _find_no_process(peer: int) -> Process | None:
    raise AssertionError(f"without a mesh there is no worker {peer}")


def _build_lost_state_error(units: tuple[int, ...]) -> StateLost:
    return StateLost(
        f"all copies of {len(units)} blocks of optimizer state were lost at once",
        means="every worker that held them died before another worker could copy them",
        do="start the run again; with more --copies, a run survives more simultaneous losses",
    )


def _build_disagreement_error(why: str) -> RunFailed:
    return RunFailed(
        why,
        means="the script took different branches on different workers; the step was not committed",
        do="decide by values that are the same on all workers: step.number, step.loss, the sums of an "
        "evaluation, or run.keep",
    )


def _build_divergence_error(why: str) -> RunFailed:
    return RunFailed(
        why,
        means="the script changes state differently on different workers, or a machine is faulty; the "
        "next step was not committed",
        do="look for changes of state in the loop over a step, and for random generators of its own; "
        "elastane run --resume goes back to a checkpoint",
    )
