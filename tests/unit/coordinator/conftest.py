"""A stage for the coordinator's judgement: workers that say what they would say, and a clock set by hand."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from elastane.api.control import (
    AgentReport,
    Answer,
    Ask,
    Dismiss,
    ProcessInfo,
    Propose,
    StepReport,
    StepReports,
    WorkerExit,
    WorkerReport,
)
from elastane.api.membership import Generation
from elastane.api.records import EventLine, LedgerLine, Samples
from elastane.api.spec import CheckpointPolicy, Pinned, RunSpec
from elastane.coordinator.actions import (
    Action,
    CommandRequest,
    Input,
    SendReply,
    SendToAgent,
    SendToWorker,
    WriteEvent,
)
from elastane.coordinator.decide import decide_actions
from elastane.coordinator.roster import Roster, create_roster

PINNED = Pinned(
    script_digest="abc",
    virtual_ranks=8,
    global_batch=64,
    microbatch=8,
    dataset_length=640,
    steps=100,
    seed=0,
    threads=1,
    convergence="exact",
    copies=None,
    parameters=1000,
    blocks=4,
    layout_digest="def",
    optimizer="AdamW",
    versions={"torch": "2"},
)


def a_line(step: int, generation: int = 1, shares: dict[int, int] | None = None) -> LedgerLine:
    first, spans = 0, {}
    for worker, share in (shares or {0: 8}).items():
        spans[worker] = ((first, first + share),)
        first += share
    return LedgerLine(
        step=step,
        generation=generation,
        workers=spans,
        samples=Samples(0, 0, 64, 64, "0" * 16),
        loss=1.0 / step,
        loss_hex=(1.0 / step).hex(),
        time=0.0,
        seconds={"step": 0.1},
    )


@dataclass
class Stage:
    """One coordinator, on a clock of its own, and what the others have told it."""

    roster: Roster
    now: float = 1000.0
    actions: list[Action] = field(default_factory=list)
    reports: dict[int, WorkerReport] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    exits: list[WorkerExit] = field(default_factory=list)
    target: int = 0
    asked: int = 0
    written: list[EventLine] = field(default_factory=list)

    # -- what others do ----------------------------------------------------------------------------------

    def hear(self, *events: Input) -> list[Action]:
        self.roster, actions = decide_actions(self.roster, events, self.now)
        self.actions += actions
        self.written += [action.event for action in actions if isinstance(action, WriteEvent)]
        return list(actions)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.hear()

    def agent(self, **changes: object) -> list[Action]:
        report = AgentReport(
            pid=1,
            target=self.target,
            term=self.roster.term.number,
            workers=tuple(ProcessInfo(role="worker", pid=100 + w, worker=w) for w in sorted(self.alive)),
            exits=tuple(self.exits),
        )
        return self.hear(msgspec.structs.replace(report, **changes))

    def worker(self, worker: int, **changes: object) -> list[Action]:
        """The worker reports; what it said before still holds where it says nothing new."""
        before = self.reports.get(worker) or WorkerReport(
            worker=worker, pid=100 + worker, host="127.0.0.1", port=5000 + worker, state="starting"
        )
        self.reports[worker] = msgspec.structs.replace(before, **changes)
        return self.hear(self.reports[worker])

    def start(self, *workers: int) -> None:
        """Processes that have finished their rehearsal."""
        self.alive |= set(workers)
        self.target = max(self.target, len(self.alive))
        self.agent()
        for worker in workers:
            self.worker(worker, state="ready", pinned=PINNED)

    def adopt(self, *workers: int, complete: bool = True, **changes: object) -> None:
        """These work in the newest generation from now on; all of its members unless named."""
        newest = self.newest
        for worker in workers or newest.workers:
            generation = newest.number
            self.worker(
                worker, state="member", generation=generation, newest=newest, complete=complete, **changes
            )

    def exit(self, worker: int, code: int = -9, *, hung: bool = False) -> list[Action]:
        self.alive.discard(worker)
        self.exits.append(WorkerExit(worker=worker, pid=100 + worker, code=code, hung=hung))
        return self.agent()

    def step(
        self, step: int, *workers: int, seconds: float = 0.1, healthy: bool = True, **line: object
    ) -> None:
        for worker in workers:
            report = StepReport(worker=worker, line=a_line(step, **line), step_s=seconds, healthy=healthy)
            self.hear(StepReports(worker=worker, reports=(report,)))

    def ask(self, question: Ask) -> Answer:
        self.asked += 1
        self.hear(CommandRequest(self.asked, question))
        return next(a.answer for a in self.actions if isinstance(a, SendReply) and a.token == self.asked)

    # -- what became of it -------------------------------------------------------------------------------

    @property
    def newest(self) -> Generation:
        assert self.roster.newest is not None
        return self.roster.newest

    @property
    def proposals(self) -> list[Generation]:
        found: dict[int, Generation] = {}
        for message in self.told(Propose):
            found[message.generation.number] = message.generation
        return list(found.values())

    def told(self, kind: type, worker: int | None = None) -> list:
        return [
            action.message
            for action in self.actions
            if isinstance(action, SendToWorker | SendToAgent)
            and isinstance(action.message, kind)
            and (worker is None or (isinstance(action, SendToWorker) and action.worker == worker))
        ]

    def dismissed(self) -> dict[int, int]:
        """Exit codes of those told to go."""
        return {
            a.worker: a.message.code
            for a in self.actions
            if isinstance(a, SendToWorker) and isinstance(a.message, Dismiss)
        }

    @property
    def events(self) -> list[EventLine]:
        return [action.event for action in self.actions if isinstance(action, WriteEvent)]

    def kinds(self, *kinds: str) -> list[str]:
        return [event.kind for event in self.events if not kinds or event.kind in kinds]

    def successor(self, *, wait: bool = True, agent: bool = True, draining: tuple[int, ...] = ()) -> "Stage":
        """The next coordinator, after this one's death: it has the files, and hears from everybody again."""
        roster = create_roster(
            self.roster.spec,
            self.roster.term.number + 1,
            self.now,
            pinned=self.roster.pinned,
            events=self.written,
            last=a_line(self.roster.progress.recorded) if self.roster.progress.recorded else None,
        )
        stage = replace(self, roster=roster, actions=[], exits=list(self.exits), alive=set(self.alive))
        if agent:
            stage.agent(draining=draining)
        if wait:
            for worker in sorted(stage.alive):
                stage.worker(worker)
        return stage


@pytest.fixture
def open_stage():
    def opened(
        *,
        start: int = 2,
        low: int = 1,
        high: int = 8,
        copies: int | None = None,
        checkpoints: CheckpointPolicy | None = None,
    ) -> Stage:
        spec = RunSpec(
            name="n",
            script="train.py",
            start=start,
            min_workers=low,
            max_workers=high,
            copies=copies,
            checkpoints=checkpoints,
        )
        return Stage(create_roster(spec, 1, 1000.0), target=start)

    return opened


@pytest.fixture
def training(open_stage):
    """A settled run of the workers 0 to n - 1, some steps in."""

    def begun(workers: int = 3, *, step: int = 5, **limits: object) -> Stage:
        stage = open_stage(start=workers, **limits)
        stage.start(*range(workers))
        stage.adopt(step=step)
        for number in range(1, step + 1):
            stage.step(number, *range(workers), shares=dict.fromkeys(range(workers), 8 // workers))
        stage.actions.clear()
        return stage

    return begun


@pytest.fixture
def line():
    return a_line


@pytest.fixture
def workers_of():
    def workers(generations: Iterable[Generation]) -> list[tuple[int, ...]]:
        return [generation.workers for generation in generations]

    return workers
