"""One history of a run, from the first process to the last, with its verdict; and the attempt after it."""

from collections.abc import Callable

import msgspec

from elastane.api.control import (
    AgentReport,
    Ask,
    AskDrain,
    AskResize,
    AskStop,
    FromWorker,
    ToAgent,
    ToWorker,
)
from elastane.api.exit_codes import ExitCode
from elastane.api.membership import WorkerId
from elastane.api.records import EventLine
from elastane.api.spec import CheckpointPolicy, Pinned, RunSpec
from elastane.coordinator.actions import Disconnected
from elastane.coordinator.checkpointing import LAST_CHECKPOINT_S
from tests.simulator import faults
from tests.simulator.agent import SimAgent
from tests.simulator.checkers import Checker, Violation, expect
from tests.simulator.clock import Clock
from tests.simulator.coordinator import RunFiles, SimCoordinator
from tests.simulator.faults import HistoryPlan
from tests.simulator.judge import Judge, describe_processes
from tests.simulator.network import ControlNetwork, Endpoint, PeerNetwork
from tests.simulator.storage import SimStorage, StoredCheckpoint
from tests.simulator.worker import SimWorker

PATIENCE_S = 60.0 + LAST_CHECKPOINT_S
"""A run must end within this time after the last fault, plus the time that one worker alone would take."""

HUNG_S = 1.0
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
        listen: receives each line of the detailed transcript; None: without a transcript.
        origin: the checkpoint of an earlier attempt from which it resumes; None: it starts from nothing.

    Attributes:
        vault: the written checkpoints.
        story: the short transcript, if ``listen`` is given.
    """

    def __init__(
        self,
        plan: HistoryPlan,
        listen: Callable[[str], None] | None = None,
        origin: StoredCheckpoint | None = None,
    ) -> None:
        layout = plan.shape.layout
        self.plan = plan
        self.shape, self.pace, self.shared = plan.shape, plan.pace, plan.shared
        self.clock = Clock(plan.seed)
        self.pinned = Pinned(
            script_digest="",
            virtual_ranks=layout.virtual_ranks,
            global_batch=layout.virtual_ranks,
            microbatch=1,
            dataset_length=1000,
            steps=plan.shape.steps,
            seed=0,
            threads=1,
            convergence="exact",
            copies=layout.copies,
            parameters=layout.units,
            blocks=layout.blocks,
            layout_digest="",
            optimizer="",
            versions={},
        )
        spec = RunSpec(
            name="simulated",
            script="",
            start=plan.start,
            max_workers=plan.max_workers,
            copies=layout.copies,
            checkpoints=CheckpointPolicy() if layout.checkpoints else None,
        )
        self.origin, self.vault = origin, SimStorage(plan.shape)
        self.files = RunFiles(spec, origin=0 if origin is None else origin.step)
        self.workers: dict[WorkerId, SimWorker] = {}
        ends: dict[WorkerId, Endpoint] = {}
        self._ends = ends
        self.streams = PeerNetwork(self.clock, plan.weather, ends)
        self.post = ControlNetwork(self.clock, plan.weather)
        self.checker = Checker(plan.shape, self.workers, self.files.origin)
        self.deaths = 0
        self._joiners_killed = 0
        self._listen = listen
        self.story: list[str] = []
        self._narrated: set[str] = set()
        self._last_fault_s = 0.0
        self.coordinator: SimCoordinator | None = None
        self.agent = SimAgent(self, plan.start)
        for fault in plan.faults:
            self._last_fault_s = max(self._last_fault_s, fault.at_s)
            self.clock.at(fault.at_s, self._doing(fault))

    # -- what the parts can reach --------------------------------------------------------------------------

    def tell(self, line: Callable[[], str]) -> None:
        if self._listen is not None:
            self._listen(f"{self.clock.now:9.4f}  {line()}")

    def to_coordinator(self, message: FromWorker) -> None:
        self.tell(lambda: f"worker {message.worker} tells the coordinator: {message}")
        self.post.carry(lambda: self.coordinator.hear(message) if self.coordinator is not None else None)

    def from_agent(self, report: AgentReport) -> None:
        self.post.carry(lambda: self.coordinator.hear(report) if self.coordinator is not None else None)

    def narrate(self, line: Callable[[], str]) -> None:
        """Add a line to the story; a line that several workers produce appears once."""
        if self._listen is not None:
            told = line()
            self.tell(lambda: told)
            if told not in self._narrated:
                self._narrated.add(told)
                self.story.append(told)

    def record(self, event: EventLine) -> None:
        self.tell(lambda: f"event {event.kind}: {event.who}: {event.why}")
        self.files.events.append(event)

    def to_worker(self, worker: WorkerId, message: ToWorker) -> None:
        self.tell(lambda: f"coordinator tells {worker}: {message}")
        self.post.carry(lambda: self.workers[worker].hear(message))

    def to_agent(self, message: ToAgent) -> None:
        self.tell(lambda: f"coordinator tells the agent: {message}")
        self.post.carry(lambda: self.agent.hear(message))

    def start_worker(self, worker: WorkerId) -> None:
        slowness = 1.0 + self.clock.random.random() * (self.plan.slowest - 1.0)
        self.workers[worker] = self._ends[worker] = SimWorker(worker, self, slowness)
        self.tell(lambda: f"worker {worker} starts")

    def kill_worker(self, worker: WorkerId) -> None:
        self.workers[worker].die()

    def start_coordinator(self, term: int) -> None:
        self.coordinator = SimCoordinator(self, term)
        self.tell(lambda: f"coordinator of term {term} starts")

    def ended(self, worker: WorkerId, code: int, *, hung: bool = False) -> None:
        """Handle the end of a worker's process, which the agent notices a moment later."""
        if code != 0:
            self.checker.after_death(self.workers[worker])
        coordinator = self.coordinator
        if coordinator is not None:
            self.post.carry(lambda: coordinator.hear(Disconnected(worker)))
        self.clock.after(self.streams.delay(), lambda: self.agent.worker_ended(worker, code, hung=hung))
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
            self.clock.at(again.at_s, self._doing(again))
        self.deaths += code == KILLED

    # -- faults --------------------------------------------------------------------------------------------

    def _doing(self, fault: faults.Fault) -> Callable[[], None]:
        return lambda: self._do(fault)

    def _victim(self, which: int) -> SimWorker | None:
        """Choose a living worker, but not too many joiners: three failed joins end a run by design."""
        living = [worker for worker in self.workers.values() if worker.alive]
        if not living:
            return None
        victim = living[which % len(living)]
        if victim.member.works_in == 0:
            if self._joiners_killed == MOST_JOINERS_KILLED:
                return None
            self._joiners_killed += 1
        return victim

    def _do(self, fault: faults.Fault) -> None:  # noqa: C901, PLR0912 - one row per kind of fault
        self._last_fault_s = self.clock.now
        self.tell(lambda: f"fault: {fault}")
        match fault:
            case faults.Resize(workers=workers):
                self._ask(AskResize(workers=workers))
            case faults.Drain(which=which):
                if (victim := self._victim(which)) is not None:
                    self._ask(AskDrain(worker=victim.worker))
            case faults.StopRun():
                self._ask(AskStop())
            case faults.KillCoordinator(absent_s=absent_s):
                if self.coordinator is not None and self.agent.over is None:
                    self.coordinator.alive = False
                    self.coordinator = None
                    self.clock.after(absent_s, self.agent.coordinator_ended)
            case faults.Kill(which=which):
                if (victim := self._victim(which)) is not None:
                    victim.die()
            case faults.Fuse(which=which, actions=actions):
                if (victim := self._victim(which)) is not None:
                    victim.fuse = actions
            case faults.Trigger(which=which, kind=kind, spared=spared):
                if (victim := self._victim(which)) is not None:
                    victim.trigger = (kind, spared)
            case faults.RefuseStorage(which=which, for_s=for_s):
                if living := [worker for worker in self.workers.values() if worker.alive]:
                    victim = living[which % len(living)]
                    victim.writing.refused_until_s = self.clock.now + for_s
            case faults.Pause(which=which, for_s=for_s):
                if (victim := self._victim(which)) is not None:
                    self._pause(victim, for_s)

    def _ask(self, ask: Ask) -> None:
        if self.coordinator is not None:
            self.coordinator.ask(ask)

    def _pause(self, victim: SimWorker, for_s: float) -> None:
        victim.pause()

        def then() -> None:
            self._last_fault_s = self.clock.now
            if for_s > HUNG_S:
                victim.die(hung=True)
            else:
                victim.resume()

        self.clock.after(min(for_s, HUNG_S), then)

    # -- the whole of it -----------------------------------------------------------------------------------

    def play(self) -> Verdict:
        """Play the history.

        Raises:
            Violation: the history broke a promise.
        """
        shape, pace = self.shape, self.pace
        leaves = shape.steps * (shape.layout.virtual_ranks + shape.evaluation_size)
        patience_s = PATIENCE_S + leaves * pace.leaf_s * self.plan.slowest + 2 * shape.steps * pace.user_s
        while self.agent.over is None or self.agent.living:
            expect(self._step(), "nothing is left to happen")
            if self.clock.now >= self._last_fault_s + patience_s:
                raise Violation(f"the run is stuck\n{describe_processes(self.coordinator, self.workers)}")
        over = self.agent.over
        judge = Judge(self.plan, self.checker, self.files, self.workers, self.vault)
        judge.check_end(over.code, over.why)
        judge.check_events(set() if self.coordinator is None else self.coordinator.heard_of_ends)
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

    def _step(self) -> bool:
        try:
            return self.clock.step()
        except Violation:
            raise
        # Any error in the code under test is a promise that this history has broken.
        except Exception as error:
            raise Violation(f"{type(error).__name__}: {error}") from error


def continue_run(
    first: History, plan: HistoryPlan, listen: Callable[[str], None] | None = None
) -> History | None:
    """Return the attempt that resumes from the newest checkpoint of a played history.

    Every process is new, and their number may differ. None: no checkpoint was complete.

    Args:
        first: the history, played to any end.
        plan: the plan of the second attempt; both are attempts of one run.
        listen: see `History`.
    """
    kept = first.vault.newest()
    if kept is None:
        return None
    return History(msgspec.structs.replace(plan, shape=first.shape), listen, kept)
