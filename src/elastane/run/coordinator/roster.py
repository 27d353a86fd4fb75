"""The coordinator's state: the workers, the generations, the requests and the recorded events.

It is a frozen value; `elastane.run.coordinator.decide` creates the next one. A new coordinator restores most
of it from one report of each worker and of the agent. `StepProgress` and the later fields of `Roster` also
need the files of the run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import inf

from elastane.run.coordinator.actions import Claimable, Ending, Input
from elastane.run.coordinator.balance import Balance
from elastane.run.coordinator.checkpoints import (
    CheckpointInProgress,
    CheckpointState,
    compute_first_due,
    group_by_checkpoint,
)
from elastane.run.coordinator.event_summary import ENDS, WorkerEvents, summarize_events
from elastane.run.coordinator.step_times import StepTimes
from elastane.run.machines.claims.records import GenerationClaim, OutcomeClaim
from elastane.run.machines.tickets.ticket_files import TicketStatus
from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.nouns.control import (
    AgentReport,
    AskStop,
    Dismiss,
    Numbers,
    RunOver,
    WorkerExit,
    WorkerFailed,
    WorkerReport,
)
from elastane.run.nouns.membership import Generation, Member, NodeName, SiteName, WorkerId
from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.nouns.sites import AbsentRule
from elastane.run.nouns.spec import Pinned, RunSpec

FIRST_NODE: NodeName = ""
"""The node on which the run began; it says how many workers the run begins with."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """The facts with which a coordinator took charge, on several machines.

    Args:
        from_node: the node that was in charge before; None: the same one.
        silent_s: how long no agent had heard a coordinator when this term was claimed; 0: another term had
            just begun, or the coordinator has handed over.
        answering: the other nodes with agents that had answered the one of this coordinator then.
        waited: the claim list was away when this term was first to be claimed.
        has_left: the node that was in charge before has left the run and handed over.
    """

    from_node: NodeName | None = None
    silent_s: float = 0.0
    answering: frozenset[NodeName] = frozenset()
    waited: bool = False
    has_left: bool = False

    @property
    def follows_new(self) -> bool:
        """Another machine had taken charge just before, so that its node is not silent."""
        return self.from_node is not None and self.silent_s == 0.0 and not self.has_left


NO_TAKEOVER = Takeover()
"""A coordinator that follows none of another machine."""


@dataclass(frozen=True, slots=True)
class Term:
    """The position of this coordinator among the coordinators of the run.

    Args:
        number: 1 for the first coordinator of a run.
        first: the number of the first coordinator since the run began or was resumed.
        listening: a later coordinator waits for reports of all processes before it decides anything.
        waiting: the inputs received while listening, which it handles afterwards.
    """

    number: int
    began: float
    first: int = 1
    pid: int = 0
    node: NodeName = ""
    listening: bool = False
    waiting: tuple[Input, ...] = ()
    takeover: Takeover = NO_TAKEOVER


@dataclass(frozen=True, slots=True)
class Claiming:
    """The claims of a run on several machines: its unplanned generations, and its end.

    Args:
        earlier: the generations that earlier terms of this attempt have claimed.
        newest: the number of the newest generation that any term of this attempt has claimed; 0: none.
        outcome: the end of the run that an earlier term has claimed, perhaps just before its death.
        pending: the generation or the end that is being claimed; until the list has answered, no generation
            is proposed.
        asked_s: when the claim was last asked for.
        unanswered: the list has not answered since then.
        recorded: the event about a list that does not answer is written.
        is_away: the list did not answer the last time.
        back_s: when it answered again after it had been away.
        unheard_since: since when a generation may be at work of which no member is heard.
        last: the last step of this attempt that was in the ledger when this term began; None: there was none.
    """

    earlier: tuple[GenerationClaim, ...] = ()
    newest: int = 0
    outcome: OutcomeClaim | None = None
    pending: Claimable | None = None
    asked_s: float = 0.0
    unanswered: bool = False
    recorded: bool = False
    is_away: bool = False
    back_s: float = -inf
    unheard_since: float | None = None
    last: LedgerLine | None = None

    @property
    def is_ending(self) -> bool:
        """The end of the run is decided, and waits for its claim."""
        return isinstance(self.pending, Ending)


@dataclass(frozen=True, slots=True)
class KnownGenerations:
    """The generations that this coordinator has proposed or learned of, besides the newest.

    Args:
        highest: the highest number in any message; the next generation gets a higher one.
        contested: a worker knows a generation that this coordinator did not propose: a new one must follow.
        by_number: the last few generations, by number.
        begun: the number of the newest one that is known to have begun: a member has all its state.
        begun_s: when that was heard.
    """

    highest: int = 0
    contested: bool = False
    by_number: Mapping[int, Generation] = field(default_factory=dict)
    begun: int = 0
    begun_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerEnds:
    """The workers that cannot take part any more, with the reasons.

    Args:
        exits: the ends of processes, from the agent's reports.
        breaks: the times of reports that a worker has lost its connection to a peer, by worker and peer.
        excluded: the workers excluded because peers lost their connections to them, with the time.
        failed: the workers in which code raised an error.
        drafts: the events of deaths that are not written yet, with the time since when they wait, see
            `elastane.run.coordinator.deaths`.
        suspects: the members with a script that ended the process, with the time; a message may follow.
    """

    exits: Mapping[WorkerId, WorkerExit] = field(default_factory=dict)
    breaks: Mapping[tuple[WorkerId, WorkerId], float] = field(default_factory=dict)
    excluded: Mapping[WorkerId, float] = field(default_factory=dict)
    failed: Mapping[WorkerId, WorkerFailed] = field(default_factory=dict)
    drafts: Mapping[WorkerId, tuple[EventLine, float]] = field(default_factory=dict)
    suspects: Mapping[WorkerId, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of the run, by name.

    Args:
        reports: the last report of each node's agent.
        heard: when it arrived.
        counted: the nodes with slots that are in the number of workers that the run should have.
        granted: the last range of workers' numbers for each node, until its agent has reported it.
        numbers_end: the end of the highest range that any node has had or was granted.
        lost: the nodes that have been lost or have left, and were not heard again.
        drained: the nodes that a user has asked to leave, until they have left.
        closed: the nodes that get no further workers, with the reasons.
        refused: the nodes that may not take part at the sites that they name, with the reasons.
        doubted: the nodes with a ticket that is not known, with the time of their first report.
        minority_s: when this coordinator last waited for most of the run's workers to be heard again.
        returned_s: when it last heard the first of needed workers that it had not heard for some time.
    """

    reports: Mapping[NodeName, AgentReport] = field(default_factory=dict)
    heard: Mapping[NodeName, float] = field(default_factory=dict)
    counted: frozenset[NodeName] = frozenset()
    granted: Mapping[NodeName, Numbers] = field(default_factory=dict)
    numbers_end: int = 0
    lost: frozenset[NodeName] = frozenset()
    drained: frozenset[NodeName] = frozenset()
    closed: Mapping[NodeName, str] = field(default_factory=dict)
    refused: Mapping[NodeName, str] = field(default_factory=dict)
    doubted: Mapping[NodeName, float] = field(default_factory=dict)
    minority_s: float = -inf
    returned_s: float = -inf


@dataclass(frozen=True, slots=True)
class WantedWorkers:
    """The number of workers that the run should have.

    Args:
        target: the number; None until an agent has reported it.
        by_hand: a user has set the number, not a controller.
        draining: the members that were asked to leave.
    """

    target: int | None = None
    by_hand: bool = False
    draining: frozenset[WorkerId] = frozenset()


@dataclass(frozen=True, slots=True)
class StepProgress:
    """The progress of the training.

    Args:
        origin: the step of the checkpoint with which this attempt of the run began; 0: it had none.
        step: the highest committed step in any report.
        recorded: every step up to this one has been reported.
        early: the reported steps beyond ``recorded``.
        committed: when the newest step with a worker's vote was reported.
        advanced_s: when a worker last reported a later step than in its report before.
        loss: the loss of the last reported step.
        lost: the losses, in hexadecimal, of the steps that this attempt makes again; empty if their bytes may
            differ.
    """

    origin: int = 0
    step: int = 0
    recorded: int = 0
    early: frozenset[int] = frozenset()
    committed: Mapping[WorkerId, float] = field(default_factory=dict)
    advanced_s: float = -inf
    loss: float | None = None
    lost: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Troubles:
    """Signs that the run does not make progress.

    Args:
        failed_joins: by node, the number of consecutive processes that ended before they became members.
        exhausted: the recent times and steps at which members exhausted a resource.
        unjoined_since: since when workers run without any having joined; None: no such time.
        lost_since: since when no living member is known to hold the state; None: a member holds it.
    """

    failed_joins: Mapping[NodeName, int] = field(default_factory=dict)
    exhausted: tuple[tuple[float, int], ...] = ()
    unjoined_since: float | None = None
    lost_since: float | None = None


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """The finished model, after the last step.

    Args:
        writer: the worker that was asked to write the model, and the time.
        refused: the workers that could not write it, with the reasons.
        written: the model exists.
        files: the files of the model, by name.
    """

    writer: tuple[WorkerId, float] | None = None
    refused: Mapping[WorkerId, str] = field(default_factory=dict)
    written: bool = False
    files: Mapping[str, WrittenFile] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WrittenEvents:
    """The written events, of which each must be written only once.

    Args:
        of_workers: the written ``worker.*`` events, by kind and worker.
        unended: the workers of earlier terms without an end in their events, each with the machine with which
            an earlier term has lost it; empty: it has not.
        keys: the keys of written events that workers may report again, with their steps.
        traffic_of: the last generation of which the bytes between machines are written.
        printed: how many lines the script has printed.
    """

    of_workers: WorkerEvents = frozenset()
    unended: Mapping[WorkerId, str] = field(default_factory=dict)
    keys: Mapping[str, int | None] = field(default_factory=dict)
    traffic_of: int = 0
    printed: int = 0


@dataclass(frozen=True)
class Roster:
    """The coordinator's state. Times are in seconds, on the clock of `elastane.run.coordinator.server`.

    It does not change, so each derived value is computed at most once, when a rule first asks for it.

    Args:
        pinned: the properties of the script, from the first worker that reported them.
        newest: the proposed or reported generation with the highest number.
        claiming: the claims of unplanned generations.
        reports: the last report of each worker.
        heard: when the last report of each worker arrived.
        connected: the workers that have a connection now.
        joined: the workers that have ever worked in a generation.
        held: the workers that have ever reported complete state.
        dismissed: the workers that this coordinator has dismissed.
        ends: the workers that cannot take part any more.
        troubles: signs that the run does not make progress.
        stopping: the first request to stop the run; None: no request is known.
        finishing: since when all members have committed the last step.
        missing_sites: the sites without a worker, as last recorded.
        site_tickets: those of sites, also revoked and expired ones.
    """

    spec: RunSpec
    term: Term
    pinned: Pinned | None = None
    newest: Generation | None = None
    known: KnownGenerations = field(default_factory=KnownGenerations)
    claiming: Claiming = field(default_factory=Claiming)
    reports: Mapping[WorkerId, WorkerReport] = field(default_factory=dict)
    heard: Mapping[WorkerId, float] = field(default_factory=dict)
    connected: frozenset[WorkerId] = frozenset()
    joined: frozenset[WorkerId] = frozenset()
    held: frozenset[WorkerId] = frozenset()
    dismissed: Mapping[WorkerId, Dismiss] = field(default_factory=dict)
    nodes: Nodes = field(default_factory=Nodes)
    ends: WorkerEnds = field(default_factory=WorkerEnds)
    wanted: WantedWorkers = field(default_factory=WantedWorkers)
    balance: Balance = field(default_factory=Balance)
    troubles: Troubles = field(default_factory=Troubles)
    progress: StepProgress = field(default_factory=StepProgress)
    times: StepTimes = field(default_factory=StepTimes)
    stopping: AskStop | None = None
    finishing: float | None = None
    model: ModelOutput = field(default_factory=ModelOutput)
    over: RunOver | None = None
    checkpoints: CheckpointState = field(default_factory=CheckpointState)
    events: WrittenEvents = field(default_factory=WrittenEvents)
    missing_sites: tuple[SiteName, ...] = ()
    site_tickets: tuple[TicketStatus, ...] = ()

    @property
    def rank_sites(self) -> tuple[SiteName, ...]:
        """The site of each virtual rank; empty: data may move, or no script has said so yet."""
        return () if self.pinned is None else self.pinned.rank_sites

    @property
    def absent_rule(self) -> AbsentRule:
        """What rounds do without a site; in a replay the earlier run has decided what they leave out."""
        return "wait" if self.pinned is None or self.spec.replayed is not None else self.pinned.absent

    @cached_property
    def gone(self) -> frozenset[WorkerId]:
        """The workers that cannot take part any more: they are dead, are thought dead, or have failed.

        This includes workers that died before they could report to this coordinator.
        """
        return frozenset({*self.ends.exits, *self.ends.excluded, *self.ends.failed})

    def is_gone(self, worker: WorkerId) -> bool:
        """Return whether a worker is among those that cannot take part any more."""
        return worker in self.gone

    def list_living(self, workers: Iterable[WorkerId]) -> tuple[WorkerId, ...]:
        gone = self.gone
        return tuple(worker for worker in workers if worker not in gone)

    def has_ended(self, worker: WorkerId) -> bool:
        """Return whether a worker certainly works no more: its agent has seen its end, or it has failed."""
        return worker in self.ends.exits or worker in self.ends.failed

    def is_left_out(self, worker: WorkerId) -> bool:
        """Return whether an excluded worker may be killed: the others go on without it.

        On several machines they do so once that is claimed. A coordinator that is not in charge any more
        cannot claim it, so it kills no worker.
        """
        if not self.spec.listen or self.newest is None:
            return True
        leavers = {leaver.worker for leaver in self.newest.leaving}
        return worker not in self.newest and worker not in leavers

    @cached_property
    def started(self) -> tuple[WorkerId, ...]:
        """The workers with a living process, as far as known, by number."""
        named = {worker for report in self.nodes.reports.values() for worker in list_node_workers(report)}
        known = named | self.reports.keys()
        return tuple(sorted(self.list_living(known)))

    @cached_property
    def candidates(self) -> tuple[WorkerId, ...]:
        """The started workers that have not been members and are not dismissed, by number."""
        newest = () if self.newest is None else self.newest.workers
        leavers = () if self.newest is None or self.whole else self.list_handing_over(self.newest)
        taken = {*newest, *(leaver.worker for leaver in leavers)}
        return tuple(
            worker
            for worker in self.started
            if worker not in self.joined and worker not in self.dismissed and worker not in taken
        )

    @cached_property
    def ready(self) -> tuple[WorkerId, ...]:
        """The candidates that have finished their rehearsal, by number."""
        return tuple(
            worker
            for worker in self.candidates
            if worker in self.reports
            and self.reports[worker].state == "ready"
            and worker not in self.wanted.draining
        )

    @cached_property
    def settled(self) -> bool:
        """Every member of the newest generation works in it."""
        return self.newest is not None and all(
            not self.is_gone(worker) and _get_generation(self, worker) == self.newest.number
            for worker in self.newest.workers
        )

    @cached_property
    def whole(self) -> bool:
        """The newest generation is settled, and every member has complete state."""
        return (
            self.settled
            and self.newest is not None
            and all(self.reports[worker].complete for worker in self.newest.workers)
        )

    @cached_property
    def needs_no_leavers(self) -> bool:
        """The newest generation needs no worker outside it any more.

        With whole copies every member has had all values since its first step, and a complete member can send
        its state to the others. With shards a leaver may hold the only copy of a block.
        """
        if self.whole or self.newest is None or self.spec.copies is not None:
            return self.whole
        has_begun = self.settled and self.times.newest >= self.newest.number
        return has_begun and any(self.reports[worker].complete for worker in self.newest.workers)

    def list_handing_over(self, generation: Generation) -> tuple[Member, ...]:
        """Return the leavers of a generation that may still have to hand over the only copy of some state."""
        return tuple(
            leaver
            for leaver in generation.leaving
            if not self.is_gone(leaver.worker) and leaver.worker not in self.dismissed
        )

    @cached_property
    def departed(self) -> frozenset[WorkerId]:
        """The living workers that have left training for good; some may still hand over state."""
        return frozenset(
            worker
            for worker, report in self.reports.items()
            if report.state == "leaving" and not self.is_gone(worker)
        )

    def list_newcomers(self, generation: Generation) -> tuple[WorkerId, ...]:
        """Return the living members of a planned generation that are not known to have begun in any."""
        living = self.list_living(generation.workers)
        begun = {worker for worker in living if _get_generation(self, worker) > 0}
        return (
            tuple(worker for worker in living if worker not in begun) if generation.planned and begun else ()
        )

    @cached_property
    def at_work(self) -> Generation | None:
        """The generation that trains now, as far as reports show.

        A planned generation takes over when a member has adopted it. A generation after a death takes over at
        once.
        """
        newest = self.newest
        if newest is None or not newest.planned:
            return newest
        adopted = max((report.generation for report in self.reports.values()), default=0)
        if adopted >= newest.number or adopted == 0:
            return newest
        return self.known.by_number.get(adopted) or _rebuild(self, adopted)

    @cached_property
    def needed(self) -> frozenset[WorkerId]:
        """The workers for which others wait: the newest members, and those with which some still work."""
        newest = self.newest
        if newest is None:
            return frozenset()
        needed = set(newest.workers)
        if not self.whole:
            needed |= {leaver.worker for leaver in newest.leaving if leaver.worker not in self.dismissed}
        if newest.planned and not self.settled:
            for worker in self.list_living(newest.workers):
                number = _get_generation(self, worker)
                if 0 < number < newest.number:
                    needed.update((self.known.by_number.get(number) or _rebuild(self, number)).workers)
        return frozenset(needed)

    @cached_property
    def fully_reported_step(self) -> int:
        """The step up to which all living members have reported everything.

        A worker that has reported a step has reported everything that happened before it.
        """
        return min(
            (self.times.reported.get(worker, 0) for worker in self.list_living(self.needed)), default=0
        )

    @cached_property
    def begun_checkpoints(self) -> tuple[CheckpointInProgress, ...]:
        """The checkpoints that any worker has begun, oldest first."""
        reported = {worker: report.checkpoints for worker, report in self.reports.items()}
        return group_by_checkpoint(reported, self.gone)

    def make_member(self, worker: WorkerId) -> Member:
        """Return the member for a worker that has reported, with its address."""
        report = self.reports[worker]
        return Member(worker, report.host, report.port, node=report.node, sites=report.sites)

    def holds_state(self, worker: WorkerId) -> bool:
        """Return whether a worker has all state, or some blocks that other copies can complete."""
        report = self.reports.get(worker)
        return worker in self.held or (report is not None and report.blocks > 0)


def _get_generation(roster: Roster, worker: WorkerId) -> int:
    report = roster.reports.get(worker)
    return 0 if report is None else report.generation


def _rebuild(roster: Roster, number: int) -> Generation:
    # Every member already reports a newer generation, so no report has this one in full.
    order = () if roster.newest is None else roster.newest.workers
    workers = sorted(
        (worker for worker, report in roster.reports.items() if report.generation == number),
        key=lambda worker: (order.index(worker) if worker in order else len(order), worker),
    )
    leavers = {worker for worker in workers if roster.reports[worker].state == "leaving"}
    return Generation(
        number,
        roster.term.number,
        tuple(roster.make_member(worker) for worker in workers if worker not in leavers),
        planned=True,
        leaving=tuple(roster.make_member(worker) for worker in workers if worker in leavers),
    )


def list_node_workers(report: AgentReport) -> tuple[WorkerId, ...]:
    """Return the workers with a process on the node of an agent."""
    return tuple(process.worker for process in report.workers if process.worker is not None)


def find_worker_node(roster: Roster, worker: WorkerId) -> NodeName:
    """Return the name of the machine of a worker, as far as reported; empty: the first one."""
    report = roster.reports.get(worker)
    if report is not None:
        return report.node
    members = () if roster.newest is None else (*roster.newest.members, *roster.newest.leaving)
    named = (member.node for member in members if member.worker == worker)
    agents = roster.nodes.reports.values()
    holding = (agent.node for agent in agents if worker in list_node_workers(agent))
    return next(chain(holding, named), FIRST_NODE)


def find_unended_workers(roster: Roster) -> frozenset[WorkerId]:
    """Return the workers without a written end that earlier terms knew."""
    return frozenset(
        worker
        for worker in roster.events.unended
        if not any((kind, worker) in roster.events.of_workers for kind in ENDS)
    )


def find_forgotten_workers(roster: Roster) -> frozenset[WorkerId]:
    """Return those of `find_unended_workers` that the run does not need.

    None before the newest generation is known: its members may be at work where nothing is heard of them.
    """
    return frozenset() if roster.newest is None else find_unended_workers(roster) - roster.needed


def list_named_nodes(report: AgentReport) -> frozenset[NodeName]:
    """Return the names of the nodes that an agent knows of."""
    return frozenset(node.name for node in report.nodes)


def create_roster(
    spec: RunSpec,
    term: int,
    now: float,
    *,
    pid: int = 0,
    node: NodeName = "",
    takeover: Takeover = NO_TAKEOVER,
    claimed: Iterable[GenerationClaim] = (),
    outcome: OutcomeClaim | None = None,
    pinned: Pinned | None = None,
    events: Iterable[EventLine] = (),
    last: LedgerLine | None = None,
    origin: int = 0,
    first_term: int = 1,
    lost: Mapping[int, str] | None = None,
    site_tickets: tuple[TicketStatus, ...] = (),
) -> Roster:
    """Return the roster of a new coordinator, from the files of the run and without workers.

    Args:
        term: 1 for the first coordinator of the run; a later one listens before it decides.
        now: the time in seconds.
        claimed: the unplanned generations in the run's claim list that count, in its order.
        outcome: the end of this attempt in the run's claim list.
        pinned: the properties in ``run.json``, once an earlier coordinator has written them.
        events: the changes in ``events.jsonl``.
        last: the last line of the ledger.
        origin: the step of the checkpoint with which this attempt of the run began; 0: it had none.
        first_term: the first term of this attempt's first coordinator; a later one listens before it decides.
        lost: see `StepProgress`.
        site_tickets: see `Roster`.
    """
    past = summarize_events(events)
    step = origin if last is None else last.step
    number = 0 if last is None else last.generation
    claimed = tuple(claimed)
    earlier = tuple(claim for claim in claimed if claim.term >= first_term)
    return Roster(
        spec=spec,
        term=Term(
            term,
            now,
            first=first_term,
            pid=pid,
            node=node,
            listening=term > first_term,
            takeover=takeover,
        ),
        pinned=pinned,
        known=KnownGenerations(highest=max(past.generation, number, *(claim.number for claim in claimed))),
        claiming=Claiming(
            earlier=earlier,
            newest=max((claim.number for claim in earlier), default=0),
            outcome=outcome,
            back_s=now if takeover.waited else -inf,
            last=None if last is None or last.step <= origin else last,
        ),
        joined=frozenset(worker for kind, worker in past.worker_events if kind == "worker.joined"),
        progress=StepProgress(
            origin=origin,
            step=step,
            recorded=step,
            loss=None if last is None else last.loss,
            lost=lost or {},
        ),
        times=StepTimes(newest=past.generation_started),
        over=past.over,
        checkpoints=CheckpointState(
            due=compute_first_due(spec.checkpoints, now),
            existing=past.checkpoints,
            step=max(origin, past.checkpoint_step),
        ),
        nodes=Nodes(
            numbers_end=max((worker for _, worker in past.worker_events), default=-1) + 1,
            drained=past.drained,
        ),
        events=WrittenEvents(past.worker_events, past.unended, past.keys, past.traffic_of, past.printed),
        site_tickets=site_tickets,
    )
