"""A simulated worker: the real `MemberMachine`, a simulated training thread, and reports to the coordinator.

The shell follows the rules of the real one. It performs the actions of one `handle` in order before the next
event. It drops a message with memory that it cannot reach because the sender is dead.
"""

import msgspec

from elastane.api.control import (
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
from elastane.api.membership import WorkerId
from elastane.protocol import actions, events, messages
from elastane.protocol.layout import STORE
from elastane.protocol.member_machine import MemberMachine
from tests.simulator.checkpoint_writer import CheckpointWriter
from tests.simulator.exchange import Exchange
from tests.simulator.memory import Memory
from tests.simulator.network import Payload
from tests.simulator.process import WorkerProcess
from tests.simulator.reference_run import compute_digests, compute_norm, get_reference
from tests.simulator.reports import Reporter
from tests.simulator.storage import StoredCheckpoint
from tests.simulator.training import TrainingThread
from tests.simulator.world import WorkerWorld

BETWEEN_REPORTS_S = 0.5


class SimWorker(WorkerProcess):
    """One worker's process.

    Args:
        worker: the number of the worker.
        world: the parts that it can reach.
        slowness: the factor on the durations of its virtual ranks.

    Attributes:
        fuse: the number of actions that it still performs before it dies; None: unlimited.
        trigger: the kind of action before which it dies, and the number of them that it still performs.
    """

    def __init__(self, worker: WorkerId, world: WorkerWorld, slowness: float = 1.0) -> None:
        member = MemberMachine(worker, world.shape.layout, _outcome_of(world.origin))
        super().__init__(worker, world, slowness, Memory(get_reference(world.shape)), member)
        self.world = world
        self.fuse: int | None = None
        self.trigger: tuple[str, int] | None = None
        self._reporter = Reporter(worker, world, self.member)
        self._exchange = Exchange(worker, world, self.memory, self.member)
        self._training = TrainingThread(self, world, self._reporter)
        self.writing = CheckpointWriter(self, world, self._reporter)
        self.after(self.chance(world.pace.start_s) + 0.05, self._rehearsed)
        self.after(0.01, self._report_regularly)

    # -- the coordinator -------------------------------------------------------------------------------------

    def _rehearsed(self) -> None:
        self.state = "ready"
        self._training.enter("train" if self.member.step < self.world.shape.steps else "settle")

    def _report_regularly(self) -> None:
        self._reporter.repeat(self._standing(), self._training.compute_s)
        self.after(BETWEEN_REPORTS_S, self._report_regularly)

    def report(self) -> None:
        self._reporter.report(self._standing(), self._training.compute_s)

    def _standing(self) -> WorkerState:
        if self.state == "ready" and self.member.works_in:
            self.state = "member"
        return self.state

    def hear(self, message: ToWorker) -> None:
        """Handle a message from the coordinator."""
        self.if_alive(lambda: self._hear(message))()

    def _hear(self, message: ToWorker) -> None:  # noqa: C901 - one row per kind of message
        match message:
            case Propose(generation=generation):
                everybody = [peer.worker for peer in (*generation.members, *generation.leaving)]
                if self.worker in everybody:
                    for peer in everybody:
                        self.world.streams.dial(self.worker, peer)
                self.handle(events.GenerationProposed(generation))
            case Acknowledge(step=step):
                self._reporter.acknowledge(step)
            case StopTraining():
                self.handle(events.StopRequested())
            case WriteModel():
                if self.state == "finished":
                    self.after(0.01, lambda: self.world.to_coordinator(ModelWritten(worker=self.worker)))
            case TakeCheckpoint(after=after):
                self.handle(events.CheckpointRequested(after))
            case PublishCheckpoint():
                self.writing.publish(message)
            case WriteAgain():
                self.writing.again(message)
            case Dismiss(code=code):
                self.world.checker.dismissed(self.worker)
                self.die(code)

    # -- peers -----------------------------------------------------------------------------------------------

    def receive(self, sender: WorkerId, message: messages.AnyPeerMessage, payload: Payload) -> None:
        self.if_alive(lambda: self._receive(sender, message, payload))()

    def _receive(self, sender: WorkerId, message: messages.AnyPeerMessage, payload: Payload) -> None:
        if self.world.shared and not self._exchange.is_readable(sender, message):
            return
        self._exchange.keep(sender, payload)
        self.handle(events.Received(sender, message))

    def lose(self, peer: WorkerId) -> None:
        self.if_alive(lambda: self.handle(events.ConnectionLost(peer)))()

    # -- the shell -------------------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> None:
        """Pass an event to the member and perform its actions, in order, before anything else happens."""
        for action in self.member.handle(event):
            if not self.alive:
                return
            if self._burns_down(action):
                self.die()
                return
            self._do(action)
        if self.alive:
            self.report()

    def _burns_down(self, action: actions.Action) -> bool:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                return True
        if self.trigger is not None:
            kind, left = self.trigger
            if kind == self.name_of(action):
                self.trigger = (kind, left - 1)
                return left == 0
        return False

    @staticmethod
    def name_of(action: actions.Action) -> str:
        """Return the name of the action or, for a sent message, of the message."""
        said = action.message if isinstance(action, actions.Send) else action
        return type(said).__name__

    def _do(self, action: actions.Action) -> None:  # noqa: C901, PLR0912, PLR0915 - one row per kind
        match action:
            case actions.Send(peer, message):
                self.world.tell(lambda: f"worker {self.worker} sends {peer}: {message}")
                if isinstance(message, messages.Vote):
                    self.world.narrate(lambda: f"{self._now()} votes")
                self.world.streams.send(self.worker, peer, message, self._exchange.payload_of(message))
            case actions.SendState(peer, fetch):
                self._exchange.serve(peer, fetch)
            case actions.LoadState(peer, state):
                self.world.narrate(
                    lambda: (
                        f"  after step {self.member.step}: worker {self.worker} {_taken_over(peer, state)}"
                    )
                )
                self._exchange.load(peer, state)
            case actions.Reduce(blocks, parts):
                self.world.narrate(lambda: f"{self._now()} sums block {' '.join(map(str, blocks))}")
                self._exchange.reduce(blocks, parts)
            case actions.TakeSums(peer, blocks):
                self._exchange.take_sums(peer, blocks)
            case actions.TakeValues(peer, units):
                self._exchange.take_values(peer, units)
            case actions.BeginRound():
                self._training.begin(action)
                self.world.tell(lambda: f"worker {self.worker} begins {action}")
                self._narrate_begin()
            case actions.Compute(virtual_ranks, assignment):
                self.world.narrate(lambda: f"{self._now()} computes {' '.join(map(str, virtual_ranks))}")
                self._training.compute(virtual_ranks, assignment)
            case actions.Measure():
                self.after(self.chance(self.world.pace.measure_s), lambda: self._measured(action))
            case actions.TakeSnapshot():
                self.writing.copy(action)
            case actions.RestoreState():
                self._restore(action)
            case actions.CommitRound():
                self.writing.committed()
                self._training.committed(action)
            case actions.ReleaseScript():
                self._training.released()
            case actions.LeaveTraining():
                self.state = "leaving"
                self._training.leave()
            case actions.EndProcess():
                self.die()
            case actions.ReportLostPeer(peer, generation):
                self._reporter.lose(peer, generation)
            case actions.FailLostState(units):
                if self.state == "finished":
                    return  # the script has left its last round, and the model needs only values
                self.world.checker.state_is_lost(self.worker, units)
                self.world.to_coordinator(
                    WorkerFailed(worker=self.worker, traceback=f"state of units {units} is lost")
                )
                # The script ends with the error.
                self.after(0.1, lambda: self.die(1))
            case actions.FailDisagreement(why):
                raise AssertionError(f"all simulated workers run one script, and yet {why}")
            case actions.FailDivergence(why):
                raise AssertionError(why)

    def _narrate_begin(self) -> None:
        generation = self.member.generation
        if generation is not None:
            workers = " ".join(str(worker) for worker in generation.workers)
            self.world.narrate(lambda: f"generation {generation.number}: {workers} ({generation.why})")

    def _now(self) -> str:
        return f"  {self._training.kind} {self._training.step}: worker {self.worker}"

    # -- checkpoints -----------------------------------------------------------------------------------------

    def _restore(self, restore: actions.RestoreState) -> None:
        origin = self.world.origin
        if origin is None:
            raise AssertionError(f"worker {self.worker} restores, but there is no checkpoint")
        for unit in restore.values:
            self.memory.parameters[unit] = origin.units[unit][0]
        for unit in restore.states:
            self.memory.optimizer[unit] = origin.units[unit][1]
        state = messages.State(
            generation=restore.generation, committed=0, values=restore.values, states=restore.states
        )
        self.after(0.001, lambda: self.handle(events.Received(STORE, state)))

    # -- digests ---------------------------------------------------------------------------------------------

    def _measured(self, action: actions.Measure) -> None:
        norms = {block: compute_norm(self.memory.slots[0][block]) for block in action.norms}
        digests = {block: self._digest(block) for block in action.digests}
        self.handle(events.Measured(action.ticket, norms, digests))

    def _digest(self, block: int) -> tuple[str, str]:
        units = self.world.shape.units_of(block)
        states = [state for unit in units if (state := self.memory.optimizer[unit]) is not None]
        values, digest = compute_digests([self.memory.parameters[unit] for unit in units], states)
        return values, digest if self.member.keeps_state_of(block) else ""


def _outcome_of(origin: StoredCheckpoint | None) -> messages.RoundOutcome | None:
    return None if origin is None else msgspec.structs.replace(messages.BEGINNING, step=origin.step)


def _taken_over(peer: WorkerId, state: messages.State) -> str:
    of = [f"values {' '.join(map(str, state.values))}"] if state.values else []
    of += [f"optimizer state {' '.join(map(str, state.states))}"] if state.states else []
    return f"receives {' and '.join(of)} from {peer}"
