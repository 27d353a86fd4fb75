"""A simulated coordinator process: the production decisions, and files that outlive the process."""

from dataclasses import dataclass, field
from typing import Protocol

from elastane.run.coordinator.actions import (
    Claimable,
    ClaimSlot,
    CommandRequest,
    Input,
    PinScript,
    SendReply,
    SendToAgent,
    SendToWorker,
    WriteEvent,
)
from elastane.run.coordinator.decide import decide_actions
from elastane.run.coordinator.roster import Roster, create_roster
from elastane.run.coordinator.server import AwakeClock
from elastane.run.nouns.control import Acknowledge, Answer, Ask, StepReports, ToAgent, ToWorker
from elastane.run.nouns.membership import NodeName, WorkerId
from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.nouns.spec import Pinned, RunSpec
from tests.run.simulator.checkers import expect
from tests.run.simulator.clock import Clock

BETWEEN_TICKS_S = 0.2


@dataclass
class RunFiles:
    """The files that a coordinator leaves to its successor."""

    spec: RunSpec
    pinned: Pinned | None = None
    ledger: dict[int, LedgerLine] = field(default_factory=dict)
    events: list[EventLine] = field(default_factory=list)
    origin: int = 0
    term: int = 0
    """The newest term that has opened them, in a run on several nodes."""
    signed_s: float = 0.0
    """When the coordinator in charge last renewed its sign of life, in a run on several nodes."""

    @property
    def step(self) -> int:
        return self.origin + len(self.ledger)


class CoordinatorWorld(Protocol):
    """The parts of the simulation that a coordinator can reach."""

    clock: Clock
    files: RunFiles

    def send_to_worker(self, worker: WorkerId, message: ToWorker) -> None: ...

    def send_to_agent(self, message: ToAgent, node: NodeName | None) -> None: ...

    def record(self, event: EventLine) -> None: ...


class SimCoordinator:
    """One coordinator process.

    Args:
        world: the parts that it can reach.
        term: the term of this coordinator.
        skew_s: how far the wall clock of its node is ahead.
    """

    def __init__(self, world: CoordinatorWorld, term: int, skew_s: float = 0.0) -> None:
        self.world, self.skew_s = world, skew_s
        self.clock = AwakeClock(world.files.spec.silence.longest_gap_s, lambda: world.clock.now)
        self.alive = True
        self._early: dict[int, LedgerLine] = {}
        self._tokens = 0
        self.answers: list[Answer] = []
        self.known_ends: frozenset[WorkerId] = frozenset()
        """The workers that had ended or were excluded, as far as it knew while it was in charge."""
        self.roster = self.create_roster(term)
        self._tick()

    def create_roster(self, term: int) -> Roster:
        """Return the roster from the files of the run."""
        files = self.world.files
        return create_roster(
            files.spec,
            term,
            self.clock.read(),
            pid=2,
            pinned=files.pinned,
            events=files.events,
            last=files.ledger[files.step] if files.ledger else None,
            origin=files.origin,
        )

    def _tick(self) -> None:
        if self.alive:
            self.receive()
            self.world.clock.schedule_after(BETWEEN_TICKS_S, self._tick)

    def ask(self, ask: Ask) -> None:
        self._tokens += 1
        self.receive(CommandRequest(self._tokens, ask))

    def receive(self, *events: Input) -> None:
        """Handle inputs that have arrived; without any, only time has passed."""
        if not self.alive:
            return
        for event in events:
            if isinstance(event, StepReports) and self.is_in_charge:
                self.write_steps(event)
        self.roster, actions = decide_actions(
            self.roster, events, self.clock.read(), self.world.clock.now + self.skew_s
        )
        if self.is_in_charge:
            self.known_ends |= self.roster.ends.exits.keys() | self.roster.ends.excluded.keys()
        for action in actions:
            match action:
                case SendToWorker(worker, message):
                    self.world.send_to_worker(worker, message)
                case SendToAgent(message, node):
                    self.world.send_to_agent(message, node)
                case WriteEvent(line):
                    self.world.record(line)
                case PinScript(pinned):
                    if self.is_in_charge:
                        self.world.files.pinned = pinned
                case SendReply(_, answer):
                    self.answers.append(answer)
                case ClaimSlot(subject):
                    self.claim(subject)

    def claim(self, subject: Claimable) -> None:
        """Claim an unplanned generation or the end; a run on one machine claims neither."""
        raise AssertionError(f"a run on one machine claims {subject}")

    def write_steps(self, steps: StepReports) -> None:
        """Write the ledger: each step once, in order, and equal in the reports of all workers."""
        files = self.world.files
        ledger = files.ledger
        for report in steps.reports:
            line = report.line
            known = ledger.get(line.step) or self._early.get(line.step)
            expect(
                known is None or (known.loss, known.samples) == (line.loss, line.samples),
                f"step {line.step} is reported in two ways: {known} and {line}",
            )
            if line.step > files.step:
                self._early.setdefault(line.step, line)
        while (following := self._early.pop(files.step + 1, None)) is not None:
            ledger[following.step] = following
        self.world.send_to_worker(steps.worker, Acknowledge(step=self.durable_step))

    @property
    def is_in_charge(self) -> bool:
        """What this coordinator writes is read by the next one."""
        return True

    @property
    def durable_step(self) -> int:
        """The step up to which every later coordinator knows the ledger."""
        return self.world.files.step
