"""A stage for the decisions of a coordinator: simulated reports, and a clock that the test sets."""

from dataclasses import dataclass, field, replace

import msgspec
import pytest

from elastane.run.coordinator.actions import (
    Action,
    ClaimHeld,
    ClaimSlot,
    CommandRequest,
    Input,
    SendReply,
    SendToAgent,
    SendToWorker,
    WriteEvent,
)
from elastane.run.coordinator.decide import decide_actions
from elastane.run.coordinator.roster import Roster, create_roster
from elastane.run.nouns.control import (
    AgentReport,
    Answer,
    Ask,
    Dismiss,
    LeaveRecorded,
    ProcessInfo,
    Propose,
    SetTarget,
    StepReport,
    StepReports,
    WorkerExit,
    WorkerReport,
)
from elastane.run.nouns.membership import Generation, NodeAddress
from elastane.run.nouns.records import EventLine, LedgerLine, Samples
from elastane.run.nouns.spec import CheckpointPolicy, RunSpec
from tests.pinned import SMALL_RUN

PINNED = msgspec.structs.replace(
    SMALL_RUN,
    script_digest="abc",
    global_batch=64,
    microbatch=8,
    dataset_length=640,
    steps=100,
    parameters=1000,
    blocks=4,
    layout_digest="def",
    optimizer="AdamW",
    versions={"torch": "2"},
)


def make_line(step: int, generation: int = 1, shares: dict[int, int] | None = None) -> LedgerLine:
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
    """One coordinator with its own clock, and the reports that it has received."""

    roster: Roster
    now: float = 1000.0
    actions: list[Action] = field(default_factory=list)
    reports: dict[int, WorkerReport] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    exits: list[WorkerExit] = field(default_factory=list)
    target: int = 0
    asked: int = 0
    written: list[EventLine] = field(default_factory=list)

    # -- inputs ------------------------------------------------------------------------------------------

    def receive(self, *events: Input) -> list[Action]:
        self.roster, actions = decide_actions(self.roster, events, self.now, self.now)
        self.actions += actions
        self.written += [action.event for action in actions if isinstance(action, WriteEvent)]
        return list(actions)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.receive()

    def report_agent(self, **changes: object) -> list[Action]:
        report = AgentReport(
            pid=1,
            target=self.target,
            total=self.target,
            nodes=(NodeAddress(""),),
            numbers=((50, 100),),
            term=self.roster.term.number,
            workers=tuple(ProcessInfo(role="worker", pid=100 + w, worker=w) for w in sorted(self.alive)),
            exits=tuple(self.exits),
        )
        return self.receive(msgspec.structs.replace(report, **changes))

    def report_worker(self, worker: int, **changes: object) -> list[Action]:
        """Receive a report of a worker: its last one, with these changes."""
        before = self.reports.get(worker) or WorkerReport(
            worker=worker, pid=100 + worker, host="127.0.0.1", port=5000 + worker, state="starting"
        )
        self.reports[worker] = msgspec.structs.replace(before, **changes)
        return self.receive(self.reports[worker])

    def start(self, *workers: int) -> None:
        """Start processes that have finished their rehearsal."""
        self.alive |= set(workers)
        self.target = max(self.target, len(self.alive))
        self.report_agent()
        for worker in workers:
            self.report_worker(worker, state="ready", pinned=PINNED)

    def adopt(self, *workers: int, complete: bool = True, **changes: object) -> None:
        """Report that these workers, or all members, work in the newest generation."""
        newest = self.newest
        for worker in workers or newest.workers:
            generation = newest.number
            self.report_worker(
                worker, state="member", generation=generation, newest=newest, complete=complete, **changes
            )

    def end_worker(self, worker: int, code: int = -9, *, hung: bool = False) -> list[Action]:
        self.alive.discard(worker)
        self.exits.append(WorkerExit(worker=worker, pid=100 + worker, code=code, hung=hung))
        return self.report_agent()

    def report_step(
        self, step: int, *workers: int, seconds: float = 0.1, healthy: bool = True, **line: object
    ) -> None:
        for worker in workers:
            report = StepReport(worker=worker, line=make_line(step, **line), step_s=seconds, healthy=healthy)
            self.receive(StepReports(worker=worker, reports=(report,)))

    def ask(self, question: Ask) -> Answer:
        self.asked += 1
        self.receive(CommandRequest(self.asked, question))
        return next(a.answer for a in self.actions if isinstance(a, SendReply) and a.token == self.asked)

    # -- results -----------------------------------------------------------------------------------------

    @property
    def newest(self) -> Generation:
        assert self.roster.newest is not None
        return self.roster.newest

    @property
    def proposals(self) -> list[Generation]:
        found: dict[int, Generation] = {}
        for message in self.list_messages(Propose):
            found[message.generation.number] = message.generation
        return list(found.values())

    def list_messages(self, kind: type, worker: int | None = None) -> list:
        return [
            action.message
            for action in self.actions
            if isinstance(action, SendToWorker | SendToAgent)
            and isinstance(action.message, kind)
            and (worker is None or (isinstance(action, SendToWorker) and action.worker == worker))
        ]

    def list_dismissals(self) -> dict[int, int]:
        """Return the exit codes of the dismissed workers."""
        return {
            a.worker: a.message.code
            for a in self.actions
            if isinstance(a, SendToWorker) and isinstance(a.message, Dismiss)
        }

    @property
    def events(self) -> list[EventLine]:
        return [action.event for action in self.actions if isinstance(action, WriteEvent)]

    def list_kinds(self, *kinds: str) -> list[str]:
        return [event.kind for event in self.events if not kinds or event.kind in kinds]

    def start_successor(
        self, *, wait: bool = True, agent: bool = True, draining: tuple[int, ...] = ()
    ) -> "Stage":
        """Return the next coordinator, which has the files and receives a report of each process."""
        roster = create_roster(
            self.roster.spec,
            self.roster.term.number + 1,
            self.now,
            pinned=self.roster.pinned,
            events=self.written,
            last=make_line(self.roster.progress.recorded) if self.roster.progress.recorded else None,
        )
        stage = replace(self, roster=roster, actions=[], exits=list(self.exits), alive=set(self.alive))
        if agent:
            stage.report_agent(draining=draining)
        if wait:
            for worker in sorted(stage.alive):
                stage.report_worker(worker)
        return stage


@pytest.fixture
def open_stage():
    def open_one(
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

    return open_one


@pytest.fixture
def training(open_stage):
    """Return a function that makes a settled run of the workers 0 to n - 1, after some steps."""

    def begin(workers: int = 3, *, step: int = 5, **limits: object) -> Stage:
        stage = open_stage(start=workers, **limits)
        stage.start(*range(workers))
        stage.adopt(step=step)
        for number in range(1, step + 1):
            stage.report_step(number, *range(workers), shares=dict.fromkeys(range(workers), 8 // workers))
        stage.actions.clear()
        return stage

    return begin


@pytest.fixture
def line():
    return make_line


# -- runs on two nodes ------------------------------------------------------------------------------------

NODES = (NodeAddress(""), NodeAddress("b"))


def claim_all(stage) -> None:
    """Let the pending claim win."""
    assert stage.roster.claiming.pending is not None
    stage.receive(ClaimHeld(stage.roster.claiming.pending))


def list_claims(stage) -> list[tuple[int, ...]]:
    return [action.subject.workers for action in stage.actions if isinstance(action, ClaimSlot)]


@pytest.fixture
def spread(open_stage):
    """Return a function that makes a settled run of workers on two nodes: below 100 on the first one."""

    def begin(*workers: int):
        stage = open_stage(start=len(workers))
        stage.roster = replace(
            stage.roster, spec=msgspec.structs.replace(stage.roster.spec, listen="10.0.0.5")
        )
        stage.target = len(workers)
        hear(stage, *workers)
        for worker in workers:
            stage.report_worker(worker, state="ready", pinned=PINNED)
        claim_all(stage)
        stage.adopt(step=5)
        stage.actions.clear()
        return stage

    return begin


def hear(stage, *workers: int, nodes=("", "b")) -> None:
    """Receive the reports of agents, with their living workers."""
    for name in nodes:
        own = [worker for worker in workers if (worker >= 100) == (name == "b")]
        processes = tuple(ProcessInfo(role="worker", pid=100 + worker, worker=worker) for worker in own)
        stage.receive(
            AgentReport(
                pid=1,
                node=name,
                slots=None if name == "" else 4,
                target=len(own),
                total=stage.target,
                nodes=NODES,
                numbers=((50, 100),) if name == "" else ((150, 200),),
                term=stage.roster.term.number,
                workers=processes,
                exits=tuple(end for end in stage.exits if (end.worker >= 100) == (name == "b")),
            )
        )


@dataclass
class OtherNode:
    """A node with an agent that does what its orders say."""

    stage: object
    name: str
    slots: int
    order: SetTarget = field(default_factory=lambda: SetTarget(target=0))
    numbers: tuple = ()
    living: set = field(default_factory=set)
    exits: tuple = ()
    farewells: int = 0

    def report(self, *, leaving: bool = False, joins: bool = True) -> None:
        actions = self.stage.receive(
            AgentReport(
                pid=7,
                target=self.order.target,
                term=0,
                node=self.name,
                joins=joins,
                slots=self.slots,
                leaving=leaving,
                numbers=self.numbers,
                total=self.order.total,
                nodes=self.order.nodes,
                workers=tuple(ProcessInfo(role="worker", pid=w, worker=w) for w in sorted(self.living)),
                exits=self.exits,
                draining=self.order.drain,
                closed=self.order.closed,
            )
        )
        self.follow(actions)

    def follow(self, actions) -> None:
        for action in actions:
            if not isinstance(action, SendToAgent) or action.node != self.name:
                continue
            if isinstance(action.message, LeaveRecorded):
                self.farewells += 1
            else:
                self.order = action.message
                if self.order.numbers is not None and self.order.numbers not in self.numbers:
                    self.numbers = (*self.numbers, self.order.numbers)

    def join(self) -> None:
        """Join, and start the workers that the order asks for."""
        self.report()
        self.report()
        first = self.numbers[0][0]
        started = range(first, first + self.order.target)
        self.living |= set(started)
        self.numbers = ((first + self.order.target, self.numbers[0][1]),)
        self.report()
        for worker in started:
            self.stage.report_worker(worker, state="ready", pinned=PINNED, node=self.name)


@pytest.fixture
def two_nodes(training):
    """Return a run of two workers with two more on another node."""
    stage = training(2)
    node = OtherNode(stage, "b", slots=2)
    node.join()
    while stage.newest.workers != (0, 1, 100, 101):
        stage.adopt()
    stage.adopt()
    return stage, node
