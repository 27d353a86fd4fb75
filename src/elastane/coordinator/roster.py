"""All the coordinator knows: who is there, who takes part, what was asked and what has been said.

A frozen value; `elastane.coordinator.decide` makes the next one. Everything in it but the last few fields can
be learned again from one report of each worker and the agent, which is how a new coordinator begins.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from elastane.api.checkpoints import WrittenFile
from elastane.api.control import (
    AgentReport,
    AskStop,
    Dismiss,
    RunOver,
    WorkerExit,
    WorkerFailed,
    WorkerReport,
)
from elastane.api.membership import Generation, Member, WorkerId
from elastane.api.records import EventLine, LedgerLine
from elastane.api.spec import Pinned, RunSpec
from elastane.coordinator.actions import Input
from elastane.coordinator.balance import Balance
from elastane.coordinator.checkpoints import CheckpointState, compute_first_due
from elastane.coordinator.event_summary import RecordedEvents, summarize_events
from elastane.coordinator.step_times import StepTimes


@dataclass(frozen=True, slots=True)
class Roster:
    """The coordinator's state. Times are in seconds, on the clock of `elastane.coordinator.decide.decide`.

    Args:
        spec: of the run.
        term: of this coordinator, 1 for the first of a run.
        first_term: of the first coordinator since the run began or was resumed.
        began: when it began.
        listening: it is not the first and has not yet heard from everybody; it decides nothing.
        waiting: what it heard meanwhile and must judge afterwards.
        pid: of its process.
        pinned: what the script is, from the first worker that said so.
        newest: the generation with the highest number, proposed by this coordinator or heard of.
        highest: the highest number ever heard of; the next generation gets a higher one.
        contested: somebody heard of a generation this coordinator did not propose: a fresh one must follow.
        generations: those heard of or proposed lately, by number.
        reports: the last of each worker.
        connected: workers with a connection now.
        exits: how processes ended, as the agent saw it.
        excluded: workers that a peer lost and that were left out for it, with the time.
        untold: deaths that are not written down yet, see `elastane.coordinator.deaths`.
        failed: workers whose code raised.
        dismissed: workers told to go.
        joined: workers that have ever been in effect members.
        held: workers that have ever reported to be complete.
        agent: its last report.
        target: workers wanted; None until the agent has said so.
        by_hand: a human has said how many, not a controller.
        draining: members asked to leave.
        stopping: who asked first for the end of the run, and why; None: nobody has, as far as is known.
        failed_joins: processes in a row that ended before they became members.
        exhausted: when, and at which step, members ran out of a resource lately.
        origin: step of the checkpoint this attempt of the run began with; 0: it began anew.
        step: highest committed step heard of.
        recorded: highest step up to which every step's report has been heard.
        early: steps heard beyond ``recorded``.
        loss: of the last step heard.
        times: durations of steps.
        balance: evaluations of speeds.
        suspects: members that exited by themselves; why is awaited since then.
        unjoined_since: since when workers run of which none has joined; None: none does.
        lost_since: since when no living member is known to hold the state.
        finishing: since when all members have made the last step.
        writer: who was asked to write the model, and when.
        model_refused: workers that could not, and why.
        model_written: somebody did.
        model_files: what was written, by name.
        over: the outcome.
        keeping: of checkpoints.
        noted: ``worker.*`` events written, by kind and worker.
        keys: of events from workers that were written and may be heard again, with their steps.
    """

    spec: RunSpec
    term: int
    began: float
    first_term: int = 1
    listening: bool = False
    waiting: tuple[Input, ...] = ()
    pid: int = 0
    pinned: Pinned | None = None
    newest: Generation | None = None
    highest: int = 0
    contested: bool = False
    generations: Mapping[int, Generation] = field(default_factory=dict)
    reports: Mapping[WorkerId, WorkerReport] = field(default_factory=dict)
    connected: frozenset[WorkerId] = frozenset()
    exits: Mapping[WorkerId, WorkerExit] = field(default_factory=dict)
    excluded: Mapping[WorkerId, float] = field(default_factory=dict)
    untold: Mapping[WorkerId, EventLine] = field(default_factory=dict)
    failed: Mapping[WorkerId, WorkerFailed] = field(default_factory=dict)
    dismissed: Mapping[WorkerId, Dismiss] = field(default_factory=dict)
    joined: frozenset[WorkerId] = frozenset()
    held: frozenset[WorkerId] = frozenset()
    agent: AgentReport | None = None
    target: int | None = None
    by_hand: bool = False
    draining: frozenset[WorkerId] = frozenset()
    stopping: AskStop | None = None
    failed_joins: int = 0
    exhausted: tuple[tuple[float, int], ...] = ()
    origin: int = 0
    step: int = 0
    recorded: int = 0
    early: frozenset[int] = frozenset()
    loss: float | None = None
    times: StepTimes = field(default_factory=StepTimes)
    balance: Balance = field(default_factory=Balance)
    suspects: Mapping[WorkerId, float] = field(default_factory=dict)
    unjoined_since: float | None = None
    lost_since: float | None = None
    finishing: float | None = None
    writer: tuple[WorkerId, float] | None = None
    model_refused: Mapping[WorkerId, str] = field(default_factory=dict)
    model_written: bool = False
    model_files: Mapping[str, WrittenFile] = field(default_factory=dict)
    over: RunOver | None = None
    keeping: CheckpointState = field(default_factory=CheckpointState)
    noted: RecordedEvents = frozenset()
    keys: Mapping[str, int | None] = field(default_factory=dict)

    def gone(self, worker: WorkerId) -> bool:
        """It cannot take part any more: dead, thought dead, or its code raised."""
        return worker in self.exits or worker in self.excluded or worker in self.failed

    def living(self, workers: Iterable[WorkerId]) -> tuple[WorkerId, ...]:
        return tuple(worker for worker in workers if not self.gone(worker))

    @property
    def started(self) -> tuple[WorkerId, ...]:
        """Workers whose process lives, as far as known, by number."""
        named = () if self.agent is None else tuple(process.worker for process in self.agent.workers)
        known = {worker for worker in named if worker is not None} | self.reports.keys()
        return tuple(sorted(self.living(known)))

    @property
    def candidates(self) -> tuple[WorkerId, ...]:
        """Started workers that have not been members and have not been told to go, by number."""
        newest = () if self.newest is None else self.newest.workers
        leavers = () if self.newest is None or self.whole else self.handing_over(self.newest)
        taken = {*newest, *(leaver.worker for leaver in leavers)}
        return tuple(
            worker
            for worker in self.started
            if worker not in self.joined and worker not in self.dismissed and worker not in taken
        )

    @property
    def ready(self) -> tuple[WorkerId, ...]:
        """Candidates whose rehearsal is over, by number."""
        return tuple(
            worker
            for worker in self.candidates
            if worker in self.reports
            and self.reports[worker].state == "ready"
            and worker not in self.draining
        )

    @property
    def settled(self) -> bool:
        """Every member of the newest generation works in it."""
        return self.newest is not None and all(
            not self.gone(worker) and self._works_in(worker) == self.newest.number
            for worker in self.newest.workers
        )

    @property
    def whole(self) -> bool:
        """Settled, and every member holds all it should."""
        return (
            self.settled
            and self.newest is not None
            and all(self.reports[worker].complete for worker in self.newest.workers)
        )

    @property
    def stays(self) -> bool:
        """The newest generation needs nobody outside it any more.

        Whole copies: with its first step everybody had all values, and who holds everything can give it to
        those still without. Else whoever leaves may hold the only copy of a block.
        """
        if self.whole or self.newest is None or self.spec.copies is not None:
            return self.whole
        has_begun = self.settled and self.times.newest >= self.newest.number
        return has_begun and any(self.reports[worker].complete for worker in self.newest.workers)

    def handing_over(self, generation: Generation) -> tuple[Member, ...]:
        """Those that leave with a generation and may still have to give what only they hold."""
        return tuple(
            leaver
            for leaver in generation.leaving
            if not self.gone(leaver.worker) and leaver.worker not in self.dismissed
        )

    @property
    def left(self) -> frozenset[WorkerId]:
        """Living workers that have left training for good; some may still hand state over."""
        return frozenset(
            worker
            for worker, report in self.reports.items()
            if report.state == "leaving" and not self.gone(worker)
        )

    def newcomers(self, generation: Generation) -> tuple[WorkerId, ...]:
        """Living members of a planned generation that are not known to have begun in it, or in any."""
        living = self.living(generation.workers)
        begun = {worker for worker in living if self._works_in(worker) > 0}
        return (
            tuple(worker for worker in living if worker not in begun) if generation.planned and begun else ()
        )

    @property
    def at_work(self) -> Generation | None:
        """The generation whose members do the training now, as far as any report shows.

        A planned generation takes over once somebody has adopted it; until then it is the one before. One
        that follows a death takes over at once.
        """
        newest = self.newest
        if newest is None or not newest.planned:
            return newest
        adopted = max((report.generation for report in self.reports.values()), default=0)
        if adopted >= newest.number or adopted == 0:
            return newest
        return self.generations.get(adopted) or self._rebuilt(adopted)

    @property
    def needed(self) -> frozenset[WorkerId]:
        """Those whose death stops others: the newest members, and whoever some of them still work with."""
        newest = self.newest
        if newest is None:
            return frozenset()
        needed = set(newest.workers)
        if not self.whole:
            needed |= {leaver.worker for leaver in newest.leaving if leaver.worker not in self.dismissed}
        if newest.planned and not self.settled:
            for worker in self.living(newest.workers):
                number = self._works_in(worker)
                if 0 < number < newest.number:
                    needed.update((self.generations.get(number) or self._rebuilt(number)).workers)
        return frozenset(needed)

    @property
    def oldest_at_work(self) -> int:
        """News of lost connections from generations before this one are no news any more."""
        newest = self.newest
        if newest is None:
            return 0
        if not newest.planned or self.settled:
            return newest.number
        numbers = (self._works_in(worker) for worker in self.living(newest.workers))
        return min((number for number in numbers if number > 0), default=newest.number)

    @property
    def said(self) -> int:
        """All living members have said all they had to say of the steps before this one.

        Whoever has reported a step has told of everything that happened before it.
        """
        return min((self.times.reported.get(worker, 0) for worker in self.living(self.needed)), default=0)

    def member(self, worker: WorkerId, speed: float = 1.0) -> Member:
        """Where a worker that has reported is to be found."""
        report = self.reports[worker]
        return Member(worker, report.host, report.port, speed)

    def holds_state(self, worker: WorkerId) -> bool:
        """It has all the state, or some blocks of it whose other copies may make it whole."""
        report = self.reports.get(worker)
        return worker in self.held or (report is not None and report.blocks > 0)

    def _works_in(self, worker: WorkerId) -> int:
        report = self.reports.get(worker)
        return 0 if report is None else report.generation

    def _rebuilt(self, number: int) -> Generation:
        # Every member has heard of a newer generation already, so none names this one in full.
        order = () if self.newest is None else self.newest.workers
        workers = sorted(
            (worker for worker, report in self.reports.items() if report.generation == number),
            key=lambda worker: (order.index(worker) if worker in order else len(order), worker),
        )
        leavers = {worker for worker in workers if self.reports[worker].state == "leaving"}
        return Generation(
            number,
            self.term,
            tuple(self.member(worker) for worker in workers if worker not in leavers),
            planned=True,
            leaving=tuple(self.member(worker) for worker in workers if worker in leavers),
        )


def create_roster(
    spec: RunSpec,
    term: int,
    now: float,
    *,
    pid: int = 0,
    pinned: Pinned | None = None,
    events: Iterable[EventLine] = (),
    last: LedgerLine | None = None,
    origin: int = 0,
    first_term: int = 1,
) -> Roster:
    """What a coordinator knows when it begins: the files of the run, and nothing of who is there.

    Args:
        spec: of the run.
        term: 1 for the first coordinator of the run; a later one listens before it decides.
        now: in seconds.
        pid: of its process.
        pinned: from ``run.json``, once an earlier coordinator has written it.
        events: changes in ``events.jsonl``.
        last: line of the ledger.
        origin: step of the checkpoint this attempt of the run began with; 0: it began anew.
        first_term: of this attempt's first coordinator; a later one listens before it decides.
    """
    past = summarize_events(events)
    step = origin if last is None else last.step
    number = 0 if last is None else last.generation
    return Roster(
        spec=spec,
        term=term,
        began=now,
        first_term=first_term,
        listening=term > first_term,
        pid=pid,
        pinned=pinned,
        highest=max(past.generation, number),
        joined=frozenset(worker for kind, worker in past.noted if kind == "worker.joined"),
        origin=origin,
        step=step,
        recorded=step,
        loss=None if last is None else last.loss,
        times=StepTimes(newest=past.generation_started),
        over=past.over,
        keeping=CheckpointState(
            due=compute_first_due(spec.checkpoints, now), kept=past.kept, step=max(origin, past.kept_step)
        ),
        noted=past.noted,
        keys=past.keys,
    )
