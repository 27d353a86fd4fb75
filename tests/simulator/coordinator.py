"""A simulated coordinator process: the production decisions, and files that outlive the process."""

from dataclasses import dataclass, field
from typing import Protocol

from elastane.api.control import Acknowledge, Answer, Ask, StepReports, ToAgent, ToWorker
from elastane.api.membership import WorkerId
from elastane.api.records import EventLine, LedgerLine
from elastane.api.spec import Pinned, RunSpec
from elastane.coordinator.actions import (
    CommandRequest,
    Input,
    PinScript,
    SendReply,
    SendToAgent,
    SendToWorker,
    WriteEvent,
)
from elastane.coordinator.decide import decide_actions
from elastane.coordinator.roster import create_roster
from tests.simulator.checkers import expect
from tests.simulator.clock import Clock

BETWEEN_TICKS_S = 0.2


@dataclass
class RunFiles:
    """The files that a coordinator leaves to its successor."""

    spec: RunSpec
    pinned: Pinned | None = None
    ledger: dict[int, LedgerLine] = field(default_factory=dict)
    events: list[EventLine] = field(default_factory=list)
    origin: int = 0

    @property
    def step(self) -> int:
        return self.origin + len(self.ledger)


class CoordinatorWorld(Protocol):
    """The parts of the simulation that a coordinator can reach."""

    clock: Clock
    files: RunFiles

    def send_to_worker(self, worker: WorkerId, message: ToWorker) -> None: ...

    def send_to_agent(self, message: ToAgent) -> None: ...

    def record(self, event: EventLine) -> None: ...


class SimCoordinator:
    """One coordinator process.

    Args:
        world: the parts that it can reach.
        term: the term of this coordinator.
    """

    def __init__(self, world: CoordinatorWorld, term: int) -> None:
        self.world = world
        self.alive = True
        files = world.files
        self._early: dict[int, LedgerLine] = {}
        self._tokens = 0
        self.answers: list[Answer] = []
        self.roster = create_roster(
            files.spec,
            term,
            world.clock.now,
            pid=2,
            pinned=files.pinned,
            events=files.events,
            last=files.ledger[files.step] if files.ledger else None,
            origin=files.origin,
        )
        self._tick()

    def _tick(self) -> None:
        if self.alive:
            self.receive()
            self.world.clock.schedule_after(BETWEEN_TICKS_S, self._tick)

    @property
    def known_ends(self) -> set[WorkerId]:
        """Return the workers that have ended or were excluded, as far as the coordinator knows."""
        return {*self.roster.ends.exits, *self.roster.ends.excluded}

    def ask(self, ask: Ask) -> None:
        self._tokens += 1
        self.receive(CommandRequest(self._tokens, ask))

    def receive(self, *events: Input) -> None:
        """Handle inputs that have arrived; without any, only time has passed."""
        if not self.alive:
            return
        for event in events:
            if isinstance(event, StepReports):
                self._write(event)
        self.roster, actions = decide_actions(self.roster, events, self.world.clock.now)
        for action in actions:
            match action:
                case SendToWorker(worker, message):
                    self.world.send_to_worker(worker, message)
                case SendToAgent(message):
                    self.world.send_to_agent(message)
                case WriteEvent(line):
                    self.world.record(line)
                case PinScript(pinned):
                    self.world.files.pinned = pinned
                case SendReply(_, answer):
                    self.answers.append(answer)

    def _write(self, steps: StepReports) -> None:
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
        self.world.send_to_worker(steps.worker, Acknowledge(step=files.step))
