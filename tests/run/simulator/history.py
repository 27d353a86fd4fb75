"""One history of a run, from the first process to the last, with its verdict; and the attempt after it."""

from collections.abc import Callable
from random import Random

import msgspec

from elastane.common.exit_codes import ExitCode
from elastane.run.coordinator.actions import Disconnected
from elastane.run.coordinator.checkpointing import LAST_CHECKPOINT_S
from elastane.run.nouns.control import (
    AgentReport,
    Ask,
    AskDrain,
    AskResize,
    AskStop,
    FromWorker,
    RunOver,
    ToAgent,
    ToWorker,
)
from elastane.run.nouns.membership import NodeName, WorkerId
from elastane.run.nouns.records import OUTCOMES, EventLine
from elastane.run.nouns.spec import CheckpointPolicy, RunSpec
from tests.pinned import SMALL_RUN
from tests.run.simulator import faults
from tests.run.simulator.agent import SimAgent
from tests.run.simulator.checkers import Checker, Unchecked, Violation, expect
from tests.run.simulator.clock import Clock
from tests.run.simulator.coordinator import RunFiles, SimCoordinator
from tests.run.simulator.faults import HistoryPlan
from tests.run.simulator.faulty_network import FaultyNetwork
from tests.run.simulator.gang import SimGang
from tests.run.simulator.gang_faults import FuseProcess, GangFault, KillProcess, PauseProcess
from tests.run.simulator.judge import Judge, describe_processes
from tests.run.simulator.needless_kills import KillCheck
from tests.run.simulator.network import ControlNetwork, Endpoint
from tests.run.simulator.network_faults import (
    LONGEST_DIAL_S,
    SHORTEST_SILENCE_S,
    BreakLink,
    CutControl,
    PartMesh,
    SilentDeath,
    WallOff,
)
from tests.run.simulator.network_injection import NetworkInjector
from tests.run.simulator.process import WorkerProcess
from tests.run.simulator.storage import SimStorage, StoredCheckpoint
from tests.run.simulator.worker import SimWorker

PATIENCE_S = 60.0 + LAST_CHECKPOINT_S
"""A run must end within this time after the last fault, plus the time that one worker alone would take."""

HUNG_S = 1.0
USUAL_READS = 0.7
"""The share of reads that are short."""

MOST_JOINERS_KILLED = 2
KILLED = -9


class Verdict(msgspec.Struct, frozen=True):
    """The result of a history.

    Args:
        steps: the number of training steps committed.
        rounds: the number of rounds committed.
        deaths: the number of workers that a fault ended.
        generations: the highest number of a generation in which a worker worked.
        code: the exit code of the run.
        why: the reason of the end.
    """

    steps: int
    rounds: int
    deaths: int
    generations: int
    code: int
    why: str


class History:
    """All parts of one history; `play` runs it.

    Args:
        plan: the plan of the history.
        write_line: receives each line of the detailed transcript; None: without a transcript.
        origin: the checkpoint of an earlier attempt from which it resumes; None: it starts from nothing.

    Attributes:
        storage: the written checkpoints.
        transcript: the short transcript, if ``write_line`` is given.
    """

    def __init__(
        self,
        plan: HistoryPlan,
        write_line: Callable[[str], None] | None = None,
        origin: StoredCheckpoint | None = None,
    ) -> None:
        layout = plan.shape.layout
        self.plan = plan
        self.shape, self.pace, self.early_parts = plan.shape, plan.pace, plan.early_parts
        self.clock = Clock(plan.seed)
        # Of their own, so that seeds of histories without them stay what they are.
        self._read_times = Random(f"times of reads of {plan.seed}")
        self.pinned = msgspec.structs.replace(
            SMALL_RUN,
            virtual_ranks=layout.virtual_ranks,
            global_batch=layout.virtual_ranks,
            dataset_length=1000,
            steps=plan.shape.steps,
            copies=layout.copies,
            parameters=layout.units,
            blocks=layout.blocks,
            rank_sites=layout.rank_sites,
            absent=layout.absent,
        )
        spec = RunSpec(
            name="simulated",
            script="",
            start=plan.start,
            max_workers=plan.max_workers,
            copies=layout.copies,
            checkpoints=CheckpointPolicy() if layout.checkpoints else None,
        )
        self.origin, self.storage = origin, SimStorage(plan.shape)
        self.files = RunFiles(spec, origin=0 if origin is None else origin.step)
        self.silence = spec.silence
        self.workers: dict[WorkerId, SimWorker] = {}
        self._sites: dict[WorkerId, str] = {}
        ends: dict[WorkerId, Endpoint] = {}
        self._ends = ends
        self.peer_network = FaultyNetwork(self.clock, plan.conditions, ends)
        self.control_network = ControlNetwork(self.clock, plan.conditions)
        self.checker = Checker(plan.shape, self.workers, self.files.origin)
        self.kill_check = KillCheck(self.workers, prompt=faults.is_prompt(plan))
        self.network_injector = NetworkInjector(self)
        self.deaths = 0
        self._joiners_killed = 0
        self._write_line = write_line
        self.transcript: list[str] = []
        self._narrated: set[str] = set()
        self._last_fault_s = 0.0
        self.coordinator: SimCoordinator | None = None
        self.earlier_coordinators: list[SimCoordinator] = []
        self.noticed_s: dict[WorkerId, float] = {}
        """When the agent of each worker that ended noticed that, or would have if it lived."""
        self._ended_s = float("inf")
        self.begin()
        for fault in plan.faults:
            self._last_fault_s = max(self._last_fault_s, fault.at_s)
            self.clock.schedule_at(fault.at_s, self._plan_fault(fault))

    def begin(self) -> None:
        """Start the first processes."""
        self.agent = SimAgent(self, self.plan.start)

    # -- what the parts can reach ------------------------------------------------------------------------

    def share_memory(self, worker: WorkerId, peer: WorkerId) -> bool:
        """Return whether two workers read each other's memory."""
        return self.plan.shared and self.find_node(worker) == self.find_node(peer)

    def draw_read_time(self) -> float:
        """Draw the time that a read of memory takes: mostly short, now and then long."""
        if not self.plan.slowest_read_s:
            return 0.0
        longest_s = self.plan.slowest_read_s * (0.1 if self._read_times.random() < USUAL_READS else 1.0)
        return self._read_times.random() * longest_s

    def find_node(self, worker: WorkerId) -> NodeName:
        node = worker % self.plan.spread
        return f"n{node}" if node else ""

    def find_sites(self, worker: WorkerId) -> tuple[str, ...]:
        """Return the sites of a worker."""
        return (self._sites[worker],) if worker in self._sites else ()

    def choose_site(self, _worker: WorkerId) -> str:
        """Choose the site of a worker that starts: one with the fewest living workers."""
        living = [self._sites[one.worker] for one in self.workers.values() if one.alive]
        return min(self.plan.sites, key=living.count)

    def trace(self, line: Callable[[], str]) -> None:
        if self._write_line is not None:
            self._write_line(f"{self.clock.now:9.4f}  {line()}")

    def send_to_coordinator(self, message: FromWorker) -> None:
        self.trace(lambda: f"worker {message.worker} tells the coordinator: {message}")
        if self.network_injector.is_cut_off(message.worker):
            return
        self.control_network.deliver(
            lambda: self.coordinator.receive(message) if self.coordinator is not None else None
        )

    def send_agent_report(self, report: AgentReport) -> None:
        self.control_network.deliver(
            lambda: self.coordinator.receive(report) if self.coordinator is not None else None
        )

    def narrate(self, line: Callable[[], str]) -> None:
        """Add a line to the transcript; a line that several workers produce appears once."""
        if self._write_line is not None:
            text = line()
            self.trace(lambda: text)
            if text not in self._narrated:
                self._narrated.add(text)
                self.transcript.append(text)

    def record(self, event: EventLine) -> None:
        self.trace(lambda: f"event {event.kind}: {event.who}: {event.why}")
        self.files.events.append(event)
        if event.kind in OUTCOMES:
            self._ended_s = min(self._ended_s, self.clock.now)

    def send_to_worker(self, worker: WorkerId, message: ToWorker) -> None:
        self.trace(lambda: f"coordinator tells {worker}: {message}")
        if self.network_injector.is_cut_off(worker):
            return
        self.control_network.deliver(lambda: self.workers[worker].receive_order(message))

    def send_to_agent(self, message: ToAgent, node: NodeName | None = None) -> None:
        self.trace(lambda: f"coordinator tells the agent: {message}")
        self.control_network.deliver(lambda: self.agent.receive(message))

    def start_worker(self, worker: WorkerId) -> None:
        slowness = 1.0 + self.clock.random.random() * (self.plan.slowest - 1.0)
        if self.plan.sites:
            self._sites[worker] = self.choose_site(worker)
        kind = SimGang if self.shape.layout.together > 1 else SimWorker
        self.workers[worker] = self._ends[worker] = kind(worker, self, slowness)
        self.trace(lambda: f"worker {worker} starts")
        self.network_injector.handle_start(worker)

    def kill_worker(self, worker: WorkerId) -> None:
        if not self.is_over and worker not in self.find_agent(worker).worker_set.draining:
            self.kill_check.check(worker)
        self.workers[worker].die()

    def start_coordinator(self, term: int) -> None:
        self.coordinator = SimCoordinator(self, term)
        self.trace(lambda: f"coordinator of term {term} starts")

    def handle_end(self, worker: WorkerId, code: int, *, hung: bool = False, silent: bool = False) -> None:
        """Handle the end of a worker's process, which the agent notices a moment later."""
        if code != 0:
            self.checker.check_death(self.workers[worker])
        if silent:
            noticed_s = self.clock.random.uniform(SHORTEST_SILENCE_S, LONGEST_DIAL_S)
            self.clock.schedule_after(noticed_s, lambda: self.disconnect(worker))
            noticed_s = self.clock.random.uniform(SHORTEST_SILENCE_S, LONGEST_DIAL_S)
        else:
            self.disconnect(worker)
            noticed_s = self.peer_network.draw_delay()
        self.noticed_s[worker] = self.clock.now + noticed_s
        self.clock.schedule_after(
            noticed_s, lambda: self.find_agent(worker).handle_worker_end(worker, code, hung=hung)
        )
        if (
            code == KILLED
            and self.clock.random.random() < self.plan.echo
            and self.deaths < len(self.plan.faults)
        ):
            again = faults.Fuse(
                self.clock.now + self.clock.random.random() * 0.1,
                self.clock.random.randrange(5),
                self.clock.random.randrange(30),
            )
            self.clock.schedule_at(again.at_s, self._plan_fault(again))
        self.deaths += code == KILLED

    def disconnect(self, worker: WorkerId) -> None:
        """Let the coordinator notice that the connection to a worker has closed."""
        coordinator = self.coordinator
        if coordinator is not None:
            self.control_network.deliver(lambda: coordinator.receive(Disconnected(worker)))

    def find_agent(self, worker: WorkerId) -> SimAgent:
        """Return the agent of a worker."""
        return self.agent

    @property
    def is_over(self) -> bool:
        return self.agent.over is not None

    @property
    def has_ended(self) -> bool:
        """The run is over, and all its processes have ended."""
        return self.is_over and not self.agent.living

    @property
    def outcome(self) -> RunOver:
        """The outcome of a run that is over."""
        if self.agent.over is None:
            raise Violation("the run is not over")
        return self.agent.over

    # -- faults ------------------------------------------------------------------------------------------

    def record_fault(self) -> None:
        """Let the patience with the run begin anew."""
        self._last_fault_s = self.clock.now

    def _plan_fault(self, fault: faults.Fault) -> Callable[[], None]:
        return lambda: self.inject(fault)

    def choose_victim(self, which: int) -> SimWorker | None:
        """Choose a living worker, but not too many joiners: three failed joins end a run by design."""
        living = [worker for worker in self.workers.values() if worker.alive]
        if not living:
            return None
        victim = living[which % len(living)]
        return None if victim.member.works_in == 0 and not self.allow_failed_join() else victim

    def allow_failed_join(self) -> bool:
        """Return whether one more joiner may fail."""
        self._joiners_killed += 1
        return self._joiners_killed <= MOST_JOINERS_KILLED

    def inject(self, fault: faults.Fault) -> None:
        """Carry out a fault now."""
        self.record_fault()
        self.trace(lambda: f"fault: {fault}")
        match fault:
            case faults.Resize(workers=workers):
                self.ask(AskResize(workers=workers))
            case faults.Drain(which=which):
                if (victim := self.choose_victim(which)) is not None:
                    self.ask(AskDrain(worker=victim.worker))
            case faults.StopRun():
                self.ask(AskStop())
            case faults.KillCoordinator(absent_s=absent_s):
                if self.coordinator is not None and self.agent.over is None:
                    self.coordinator.alive = False
                    self.earlier_coordinators.append(self.coordinator)
                    self.coordinator = None
                    self.clock.schedule_after(absent_s, self.agent.replace_coordinator)
            case faults.Kill(which=which):
                if (victim := self.choose_victim(which)) is not None:
                    victim.die()
            case faults.Fuse(which=which, actions=actions):
                if (victim := self.choose_victim(which)) is not None:
                    victim.fuse = actions
            case faults.Trigger(which=which, kind=kind, spared=spared):
                if (victim := self.choose_victim(which)) is not None:
                    victim.trigger = (kind, spared)
            case faults.RefuseStorage(which=which, for_s=for_s):
                if living := [worker for worker in self.workers.values() if worker.alive]:
                    victim = living[which % len(living)]
                    victim.checkpoint_writer.refused_until_s = self.clock.now + for_s
            case faults.SpoilChecks(which=which):
                if (victim := self.choose_victim(which)) is not None:
                    victim.spoils = True
            case faults.Pause(which=which, for_s=for_s):
                if (victim := self.choose_victim(which)) is not None:
                    self._pause(victim, for_s)
            case faults.LoseNode(which=which):
                self._lose_node(which)
            case FuseProcess() | KillProcess() | PauseProcess():
                self._inject_in_gang(fault)
            case BreakLink() | PartMesh() | WallOff() | CutControl() | SilentDeath():
                self.network_injector.inject(fault)
            case _:
                raise AssertionError(f"a run on one node has no fault like {fault}")

    def _inject_in_gang(self, fault: GangFault) -> None:
        """Let a fault strike one process of a worker of several."""
        gang = self.choose_victim(fault.which)
        if not isinstance(gang, SimGang):
            return
        victim = gang.followers[fault.process % len(gang.followers)]
        match fault:
            case KillProcess():
                victim.die()
            case FuseProcess(orders=orders):
                victim.fuse = orders
            case PauseProcess(for_s=for_s):
                self._pause(victim, for_s)

    def _lose_node(self, which: int) -> None:
        """Let all workers of one node die at once, but spare joiners if too many joins would fail."""
        living = [worker for worker in self.workers.values() if worker.alive]
        if not living:
            return
        node = self.find_node(living[which % len(living)].worker)
        there = [worker for worker in living if self.find_node(worker.worker) == node]
        members = {worker for worker in there if worker.member.works_in}
        lost = [worker for worker in there if worker in members or self.allow_failed_join()]
        survives = self.checker.does_node_loss_leave_copies([worker.worker for worker in lost])
        for worker in lost:
            worker.die()
        expect(
            not survives or self.checker.does_state_survive(),
            f"the loss of node {node} alone lost state that had copies",
        )

    def ask(self, ask: Ask) -> None:
        """Let a user ask the coordinator."""
        if self.coordinator is not None:
            self.coordinator.ask(ask)

    def _pause(self, victim: WorkerProcess, for_s: float) -> None:
        victim.pause()

        def end_pause() -> None:
            self.record_fault()
            if for_s > HUNG_S:
                self.workers[victim.worker].die(hung=True)
            else:
                victim.resume()

        self.clock.schedule_after(min(for_s, HUNG_S), end_pause)

    # -- the whole history -------------------------------------------------------------------------------

    def play(self) -> Verdict:
        """Play the history.

        Raises:
            Violation: the history broke a promise.
            Unchecked: a fault spoilt a gradient, and no worker was left to check it.
        """
        shape, pace = self.shape, self.pace
        leaves = shape.steps * (shape.layout.virtual_ranks + shape.evaluation_size)
        patience_s = PATIENCE_S + leaves * pace.leaf_s * self.plan.slowest + 2 * shape.steps * pace.user_s
        while not self.has_ended:
            expect(self._step(), "no event is left, but the run has not ended")
            if self.clock.now >= self._last_fault_s + patience_s:
                raise Violation(f"the run is stuck\n{describe_processes(self.coordinator, self.workers)}")
        over = self.outcome
        judge = Judge(self.plan, self.checker, self.files, self.workers, self.storage)
        judge.check_end(over.code, over.why)
        judge.check_events(self.list_known_ends())
        if over.code in (ExitCode.OK, ExitCode.STOPPED_BY_USER):
            judge.check_last_checkpoint()
        return Verdict(
            steps=self.checker.steps,
            rounds=len(self.checker.rounds),
            deaths=self.deaths,
            generations=max((w.member.works_in for w in self.workers.values()), default=0),
            code=over.code,
            why=over.why,
        )

    def list_known_ends(self) -> set[WorkerId]:
        """Return the workers whose end the last coordinator knew, or an earlier one long before the end.

        The next one may hear a worker again that a coordinator has lost. An agent needs time for its report.
        """
        last = frozenset[WorkerId]() if self.coordinator is None else self.coordinator.known_ends
        limit_s = self.silence.limit_s
        long_ended = {worker for worker, at_s in self.noticed_s.items() if at_s + limit_s <= self._ended_s}
        earlier = {worker for one in self.earlier_coordinators for worker in one.known_ends}
        return (earlier & long_ended) | last

    def _step(self) -> bool:
        try:
            return self.clock.step()
        except (Violation, Unchecked):
            raise
        # Any error in the code under test is a promise that this history has broken.
        except Exception as error:
            raise Violation(f"{type(error).__name__}: {error}") from error


def continue_run(
    first: History, plan: HistoryPlan, write_line: Callable[[str], None] | None = None
) -> History | None:
    """Return the attempt that resumes from the newest checkpoint of a played history.

    Every process is new, and their number may differ. None: no checkpoint was complete.

    Args:
        first: the history, played to any end.
        plan: the plan of the second attempt; both are attempts of one run.
        write_line: see `History`.
    """
    kept = first.storage.find_newest()
    if kept is None:
        return None
    return type(first)(msgspec.structs.replace(plan, shape=first.shape), write_line, kept)
