"""A simulated worker: the real `MemberMachine`, a simulated training thread, and reports to the coordinator.

The shell follows the rules of the real one. It performs the actions of one `handle` in order before the next
event. It drops a message with memory that it cannot reach because the sender is dead.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from elastane.run.nouns.control import (
    FOUND_WRONG,
    Acknowledge,
    Dismiss,
    ModelWritten,
    Propose,
    PublishCheckpoint,
    StopTraining,
    TakeCheckpoint,
    ToWorker,
    WorkerFailed,
    WorkerState,
    WriteAgain,
    WriteModel,
)
from elastane.run.nouns.membership import Generation, WorkerId
from elastane.run.protocol import actions, events, messages
from elastane.run.protocol.layout import STORE
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.protocol.spot_checks import Finding
from tests.run.simulator.checkpoint_writer import CheckpointWriter
from tests.run.simulator.exchange import Exchange, build_state
from tests.run.simulator.memory import Memory
from tests.run.simulator.network import Payload
from tests.run.simulator.process import WorkerProcess
from tests.run.simulator.reads import Read
from tests.run.simulator.reference_run import compute_digests, compute_norm
from tests.run.simulator.reports import Reporter
from tests.run.simulator.storage import StoredCheckpoint
from tests.run.simulator.training import TrainingThread
from tests.run.simulator.world import WorkerWorld


class SimWorker(WorkerProcess):
    """One worker's process.

    Args:
        worker: the number of the worker.
        world: the parts that it can reach.
        slowness: the factor on the durations of its virtual ranks.

    Attributes:
        fuse: the number of actions that it still performs before it dies; None: unlimited.
        trigger: the kind of action or event before which it dies, and the number of them that come before.
    """

    def __init__(self, worker: WorkerId, world: WorkerWorld, slowness: float = 1.0) -> None:
        member = MemberMachine(worker, world.shape.layout, make_outcome(world.origin))
        memory = Memory(world.checker.reference, world.shape.layout.together)
        super().__init__(worker, world, slowness, memory, member)
        self.world = world
        self.fuse: int | None = None
        self.trigger: tuple[str, int] | None = None
        self._reporter = Reporter(worker, world, self.member)
        self._exchange = Exchange(worker, world, self.memory, self.member)
        self._ended: deque[Read] = deque()
        self._training = TrainingThread(self, world, self._reporter)
        self.checkpoint_writer = CheckpointWriter(self, world, self._reporter)
        self.schedule(self.draw_duration(world.pace.start_s) + 0.05, self.finish_rehearsal)
        self.schedule(0.01, self._report_regularly)

    # -- the coordinator ---------------------------------------------------------------------------------

    def finish_rehearsal(self) -> None:
        """Enter the first round."""
        self.state = "ready"
        self._training.enter("train" if self.member.step < self.world.shape.steps else "settle")

    def _report_regularly(self) -> None:
        self._reporter.repeat(self._update_state(), self._training.compute_median_s)
        self.schedule(self.world.silence.report_every_s, self._report_regularly)

    def reconnect(self) -> None:
        """Send everything again over a new connection to the coordinator."""
        self.guard(lambda: self._reporter.repeat(self._update_state(), self._training.compute_median_s))()

    def report(self) -> None:
        self._reporter.report(self._update_state(), self._training.compute_median_s)

    def _update_state(self) -> WorkerState:
        if self.state == "ready" and self.member.works_in:
            self.state = "member"
        return self.state

    def receive_order(self, message: ToWorker) -> None:
        """Handle a message from the coordinator."""
        self.guard(lambda: self._handle_order(message))()

    def _handle_order(self, message: ToWorker) -> None:
        match message:
            case Propose(generation=generation):
                self._connect(generation)
                self.handle(events.GenerationProposed(generation))
            case Acknowledge(step=step):
                self._reporter.acknowledge(step)
            case StopTraining():
                self.handle(events.StopRequested())
            case WriteModel():
                if self.state == "finished":
                    self.schedule(
                        0.01, lambda: self.world.send_to_coordinator(ModelWritten(worker=self.worker))
                    )
            case TakeCheckpoint(after=after):
                self.handle(events.CheckpointRequested(after))
            case PublishCheckpoint():
                self.checkpoint_writer.publish(message)
            case WriteAgain():
                self.checkpoint_writer.write_again(message)
            case Dismiss(code=code):
                self.world.checker.record_dismissal(self.worker)
                self.die(code)

    # -- peers -------------------------------------------------------------------------------------------

    def _connect(self, generation: Generation) -> None:
        workers = [peer.worker for peer in (*generation.members, *generation.leaving)]
        if self.worker in workers:
            for peer in workers:
                self.world.peer_network.connect(self.worker, peer)

    def receive(self, sender: WorkerId, message: messages.AnyPeerMessage, payload: Payload) -> None:
        self.guard(lambda: self._receive(sender, message, payload))()

    def _receive(self, sender: WorkerId, message: messages.AnyPeerMessage, payload: Payload) -> None:
        if not self.world.share_memory(self.worker, sender) or self._exchange.is_readable(sender, message):
            self.take_message(sender, message, payload)

    def take_message(self, sender: WorkerId, message: messages.AnyPeerMessage, payload: Payload) -> None:
        """Pass a message on to the member; the memory to which it refers can be read."""
        self._exchange.store_payload(sender, payload)
        if isinstance(message, messages.State) and message.reports:
            self._reporter.take_over(message.reports)
        if isinstance(message, messages.Proposal):
            self._connect(message.proposed)
        if isinstance(message, messages.Vote) and message.recomputed:
            self.world.checker.record_check(self.worker, message.round, self.member.step + 1)
        self.handle(events.Received(sender, message))

    def handle_lost_peer(self, peer: WorkerId) -> None:
        self.guard(lambda: self.take_loss(peer))()

    def take_loss(self, peer: WorkerId) -> None:
        """Pass the loss of a peer on to the member."""
        self.handle(events.ConnectionLost(peer))

    # -- the shell ---------------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> None:
        """Pass an event to the member and perform its actions, in order, before anything else happens.

        Then end the reads that take no time, in their order.
        """
        self.pass_on(event)
        self.settle()

    def settle(self) -> None:
        """End the reads that take no time, in their order, and report."""
        while self.alive and self._ended:
            self._end_read(self._ended.popleft())
        if self.alive:
            self.report()

    def pass_on(self, event: events.Event) -> None:
        """Pass an event to the member and perform its actions; reads end later."""
        if self._is_triggered(type(event).__name__):
            self.die()
            return
        for action in self.member.handle(event):
            if not self.alive:
                return
            if self._is_death_due(action):
                self.die()
                return
            self.perform(action)

    def _begin_read(self, read: Read, least_s: float = 0.0) -> None:
        takes_s = least_s + self.world.draw_read_time()
        if takes_s == 0.0:
            self._ended.append(read)
            return
        self.schedule(takes_s, lambda: self._end_late_read(read))

    def _end_late_read(self, read: Read) -> None:
        self._ended.append(read)
        self.settle()

    def _end_read(self, read: Read) -> None:
        answer = read.end()
        if read.torn:
            self.world.checker.torn.append(f"worker {self.worker}: {type(answer).__name__}")
        self.pass_on(answer)
        if self.alive and not self._is_excluded():
            read.check()

    def _is_excluded(self) -> bool:
        """Return whether others have begun a generation without it: they write over sums that it still reads.

        It can commit nothing any more, because the others do not vote in its generation.
        """
        mine = self.member.generation
        others = (process.member.generation for process in self.world.workers.values())
        return mine is not None and any(
            other is not None and other.number > mine.number and self.worker not in other for other in others
        )

    def _is_death_due(self, action: actions.Action) -> bool:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                return True
        return self._is_triggered(self.get_name(action))

    def _is_triggered(self, name: str) -> bool:
        if self.trigger is None or self.trigger[0] != name:
            return False
        kind, left = self.trigger
        self.trigger = (kind, left - 1)
        return left == 0

    @staticmethod
    def get_name(action: actions.Action) -> str:
        """Return the name of the action or, for a sent message, of the message."""
        named = action.message if isinstance(action, actions.Send) else action
        return type(named).__name__

    def perform(self, action: actions.Action) -> None:
        """Perform an action of the member."""
        match action:
            case actions.Send(peer, message):
                self.world.trace(lambda: f"worker {self.worker} sends {peer}: {message}")
                if isinstance(message, messages.Vote):
                    self.world.narrate(lambda: f"{self._format_position()} votes")
                self.world.peer_network.send(
                    self.worker, peer, message, self._exchange.build_payload(peer, message)
                )
            case actions.SendState(peer, fetch):
                self.send_state(peer, self.build_state(fetch), self._exchange.pack_state(fetch))
            case actions.LoadState(peer, state):
                transfer = _describe_transfer(peer, state)
                self.world.narrate(
                    lambda: f"  after step {self.member.step}: worker {self.worker} {transfer}"
                )
                self._begin_read(self._exchange.load(action))
            case actions.Reduce(blocks=blocks):
                self.world.narrate(
                    lambda: f"{self._format_position()} sums block {' '.join(map(str, blocks))}"
                )
                self._begin_read(self._exchange.reduce(action))
            case actions.MergeSums():
                merging_s = self.draw_duration(self.world.pace.measure_s)
                self._begin_read(self._exchange.merge(action), merging_s)
            case actions.TakeSums():
                self._begin_read(self._exchange.take_sums(action))
            case actions.TakeValues():
                self._begin_read(self._exchange.take_values(action))
            case actions.BeginRound():
                self._training.begin(action)
                self.world.trace(lambda: f"worker {self.worker} begins {action}")
                self._narrate_begin()
            case actions.Compute(virtual_ranks):
                self.world.narrate(
                    lambda: f"{self._format_position()} computes {' '.join(map(str, virtual_ranks))}"
                )
                self._training.compute(action)
            case actions.Recompute(virtual_rank):
                self.world.narrate(lambda: f"{self._format_position()} computes {virtual_rank} once more")
                self._training.recompute(virtual_rank)
            case actions.Measure():
                self.schedule(
                    self.draw_duration(self.world.pace.measure_s),
                    lambda: self.handle(
                        measure_state(self.memory, self.world, action, self.member.keeps_state_of)
                    ),
                )
            case actions.TakeSnapshot():
                self.checkpoint_writer.copy(action)
            case actions.RestoreState():
                self._restore(action)
            case actions.CommitRound():
                self.checkpoint_writer.write_snapshot()
                self._training.finish_round(action)
            case actions.ReleaseScript():
                self._training.continue_script()
            case actions.LeaveTraining():
                self.state = "leaving"
                self._training.leave()
            case actions.EndProcess():
                self.die()
            case actions.ReportLostPeer(peer):
                self._reporter.report_lost_peer(peer)
            case actions.FailLostState(units):
                if self.state == "finished":
                    return  # the script has left its last round, and the model needs only values
                self.world.checker.record_lost_state(self.worker, units)
                self.world.send_to_coordinator(
                    WorkerFailed(worker=self.worker, traceback=f"state of units {units} is lost")
                )
                # The script ends with the error.
                self.schedule(0.1, lambda: self.die(1))
            case actions.FailDisagreement(why):
                raise AssertionError(f"all simulated workers run one script, but {why}")
            case actions.FailDivergence(why):
                raise AssertionError(why)
            case actions.FailSpotCheck(finding):
                self._fail_spot_check(finding)

    def _fail_spot_check(self, finding: Finding) -> None:
        self.world.narrate(lambda: f"{self._format_position()} finds {finding}")
        self.world.checker.check_finding(finding)
        if finding.wrong is None:
            self.world.send_to_coordinator(WorkerFailed(worker=self.worker, traceback=f"{finding}"))
            self.schedule(0.1, lambda: self.die(1))
        elif finding.wrong == self.worker:
            self.die(FOUND_WRONG)

    def build_state(self, fetch: messages.Fetch) -> messages.State:
        """Return the answer to a request for state."""
        return build_state(fetch, self._reporter.hand_over() if fetch.needs_reports else b"")

    def send_state(self, peer: WorkerId, state: messages.State, payload: Payload) -> None:
        """Send state to a peer."""
        self.world.trace(lambda: f"worker {self.worker} serves {peer}: {state}")
        self.world.peer_network.send(self.worker, peer, state, payload)

    def _narrate_begin(self) -> None:
        generation = self.member.generation
        if generation is not None:
            workers = " ".join(str(worker) for worker in generation.workers)
            self.world.narrate(lambda: f"generation {generation.number}: {workers} ({generation.why})")

    def _format_position(self) -> str:
        return f"  {self._training.kind} {self._training.step}: worker {self.worker}"

    # -- checkpoints -------------------------------------------------------------------------------------

    def _restore(self, restore: actions.RestoreState) -> None:
        state = restore_state(self.memory, self.world, restore)
        self.schedule(0.001, lambda: self.take_restored(state))

    def take_restored(self, state: messages.State) -> None:
        """Pass the state of the run's start on to the member."""
        self.handle(events.Received(STORE, state))


def restore_state(memory: Memory, world: WorkerWorld, restore: actions.RestoreState) -> messages.State:
    """Restore units from the checkpoint of the run's start; return the message of their arrival."""
    origin = world.origin
    if origin is None:
        raise AssertionError("a worker restores, but there is no checkpoint")
    for unit in restore.values:
        memory.parameters[unit] = origin.units[unit][0]
    for unit in restore.states:
        memory.optimizer[unit] = origin.units[unit][1]
    return messages.State(
        generation=restore.generation,
        committed=restore.committed,
        values=restore.values,
        states=restore.states,
    )


def measure_state(
    memory: Memory, world: WorkerWorld, measure: actions.Measure, keeps_state_of: Callable[[int], bool]
) -> events.Measured:
    """Return norms of sums and digests of state in the memory of a process."""

    def compute_digest(block: int) -> tuple[str, str]:
        units = world.shape.list_units(block)
        states = [state for unit in units if (state := memory.optimizer[unit]) is not None]
        values, digest = compute_digests([memory.parameters[unit] for unit in units], states)
        return values, digest if keeps_state_of(block) else ""

    # Processes of a gang have the same symbols, and the squares of all count.
    together = world.shape.layout.together
    norms = {
        block: tuple(square / together for square in compute_norm(memory.slots[0][block]))
        for block in measure.norms
    }
    digests = {block: compute_digest(block) for block in measure.digests}
    return events.Measured(measure.request, norms, digests)


def make_outcome(origin: StoredCheckpoint | None) -> messages.RoundOutcome | None:
    """Return the outcome with which a worker begins; None: the run starts from nothing."""
    return None if origin is None else msgspec.structs.replace(messages.BEGINNING, step=origin.step)


def _describe_transfer(peer: WorkerId, state: messages.State) -> str:
    parts = [f"values {' '.join(map(str, state.values))}"] if state.values else []
    parts += [f"optimizer state {' '.join(map(str, state.states))}"] if state.states else []
    return f"receives {' and '.join(parts)} from {peer}"
