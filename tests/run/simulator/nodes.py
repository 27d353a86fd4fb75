"""The nodes of a simulated run: their agents, their coordinators, and the networks between them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from elastane.run.coordinator.actions import Claimable, ClaimHeld, ClaimsChecked, ClaimUnanswered, Input
from elastane.run.coordinator.claiming import claim_slot
from elastane.run.coordinator.roster import Roster, Takeover, create_roster
from elastane.run.machines.claims.decisions import DecisionClaims
from elastane.run.machines.claims.place import ClaimsUnavailable
from elastane.run.machines.claims.terms import OwnTerm
from elastane.run.machines.succession.silence import Silence
from elastane.run.nouns.control import AgentReport, ToAgent, ToWorker
from elastane.run.nouns.membership import NodeName, WorkerId
from elastane.run.nouns.records import EventLine
from tests.run.simulator.agent import SimAgent
from tests.run.simulator.claims import NodeClaimList, SimClaimList
from tests.run.simulator.clock import Clock
from tests.run.simulator.coordinator import RunFiles, SimCoordinator
from tests.run.simulator.node_faults import PartNodes

CHECK_LINK_S = 0.2
"""How often an agent looks whether it hears the coordinator."""

CLAIM_S = 0.05
"""The longest time until a claim reaches the list, and until its answer is back."""


class NodeWorld(Protocol):
    """The parts of the simulation that the processes of a node can reach."""

    clock: Clock
    files: RunFiles
    claims: SimClaimList
    skews: dict[NodeName, float]

    def send_order(self, sender: "NodeCoordinator", worker: WorkerId, message: ToWorker) -> None: ...

    def send_agent_order(
        self, sender: "NodeCoordinator", message: ToAgent, node: NodeName | None
    ) -> None: ...

    def end_coordinator(self, coordinator: "NodeCoordinator", why: str) -> None: ...

    def record(self, event: EventLine) -> None: ...

    def trace(self, line: Callable[[], str]) -> None: ...


class NodePartition(NamedTuple):
    """A partition between nodes; see `PartNodes`."""

    fault: PartNodes
    place: Callable[[WorkerId], int]

    def contains(self, worker: WorkerId) -> bool:
        """Return whether a worker is on a node of this side."""
        return self.place(worker) in self.fault.side

    def cuts(self, sender: int, receiver: int) -> bool:
        """Return whether a control message from one node to another one is lost."""
        sends, receives = sender in self.fault.side, receiver in self.fault.side
        return sends != receives and (sends or not self.fault.one_way)


class CoordinatorOutlet:
    """The ways out of one coordinator: its messages and its lines in the files of the run.

    What it writes after a later term has opened the files is left behind.
    """

    def __init__(self, world: NodeWorld, term: int) -> None:
        self._world, self._term = world, term
        self.clock, self.files = world.clock, world.files
        self.coordinator: NodeCoordinator | None = None

    def send_to_worker(self, worker: WorkerId, message: ToWorker) -> None:
        if self.coordinator is not None:
            self._world.send_order(self.coordinator, worker, message)

    def send_to_agent(self, message: ToAgent, node: NodeName | None) -> None:
        if self.coordinator is not None:
            self._world.send_agent_order(self.coordinator, message, node)

    def record(self, event: EventLine) -> None:
        if self._term >= self.files.term:
            self._world.record(event)


class NodeCoordinator(SimCoordinator):
    """A coordinator of a run on several nodes. Its term is claimed already.

    Args:
        world: the parts that it can reach.
        node: the name of its node.
        own_term: its term.
        takeover: how it took charge.
    """

    def __init__(
        self,
        world: NodeWorld,
        node: NodeName,
        own_term: OwnTerm,
        takeover: Takeover,
    ) -> None:
        self._nodes, self.node, self._own_term = world, node, own_term
        self._takeover = takeover
        self._claims = DecisionClaims(NodeClaimList(world.claims, node), own_term)  # type: ignore[arg-type]
        self.paused = False
        self._waiting: list[Input] = []
        self.term = own_term.number
        world.files.term = max(world.files.term, self.term)
        self._durable_step = 0
        outlet = CoordinatorOutlet(world, self.term)
        super().__init__(outlet, self.term, world.skews.get(node, 0.0))
        outlet.coordinator = self
        self._schedule(self.world.files.spec.silence.check_every_s, self._check)

    def create_roster(self, term: int) -> Roster:
        """Return the roster from the files of the run and from its claim list."""
        files = self.world.files
        claimed, outcome = self._claims.read() if files.spec.listen else ((), None)
        return create_roster(
            files.spec,
            term,
            self.clock.read(),
            pid=2,
            node=self.node,
            takeover=self._takeover,
            claimed=claimed,
            outcome=outcome,
            pinned=files.pinned,
            events=files.events,
            last=files.ledger[files.step] if files.ledger else None,
            origin=files.origin,
        )

    def receive(self, *events: Input) -> None:
        """Handle inputs, or keep them while the process is stopped."""
        if self.paused:
            self._waiting += events
        else:
            super().receive(*events)

    def resume(self) -> None:
        """Handle all inputs that have waited, before anything else."""
        self.paused = False
        waiting, self._waiting = self._waiting, []
        self.receive(*waiting)

    # -- the claim list ----------------------------------------------------------------------------------

    def claim(self, subject: Claimable) -> None:
        """Claim a generation or the end of the run; the answer is an input."""

        def attempt() -> None:
            try:
                superseded = claim_slot(self._claims, subject)
            except ClaimsUnavailable as error:
                unanswered = ClaimUnanswered(subject, error.what)
                self._schedule(self._draw_delay(), lambda: self.receive(unanswered))
                return
            if superseded is None:
                self._schedule(self._draw_delay(), lambda: self.receive(ClaimHeld(subject)))

        self._schedule(self._draw_delay(), attempt)

    def _draw_delay(self) -> float:
        return self.world.clock.random.random() * CLAIM_S

    def _check(self) -> None:
        """End if another term is in charge. Otherwise all lines so far are known to later terms."""
        step = self.world.files.step
        superseded = self._own_term.check()
        if superseded is not None:
            self._nodes.end_coordinator(self, superseded.what)
            return
        self.receive(ClaimsChecked(self._own_term.answered))
        if self._own_term.answered:
            self._durable_step = step
            self.world.files.signed_s = self.world.clock.now
        self._schedule(self.world.files.spec.silence.check_every_s, self._check)

    def _schedule(self, delay_s: float, callback: Callable[[], None]) -> None:
        def run() -> None:
            if self.alive and self.paused:
                self.world.clock.schedule_after(CHECK_LINK_S, run)
            elif self.alive:
                callback()

        self.world.clock.schedule_after(delay_s, run)

    # -- the ledger --------------------------------------------------------------------------------------

    @property
    def durable_step(self) -> int:
        """The step up to which every later coordinator knows the ledger: written before the last check."""
        return self._durable_step

    @property
    def is_in_charge(self) -> bool:
        """No later term has opened the files."""
        return self.term >= self.world.files.term


@dataclass
class SimNode:
    """One node.

    Attributes:
        index: 0 for the first node.
        agent: its agent.
        alive: it has power, and its agent lives.
        coordinators: those that it has started, oldest first.
        link: the coordinator to which its processes are connected.
        heard_s: when its agent last heard a coordinator.
        silence: what its agent has seen since then.
        claims_term: its agent is starting a coordinator.
        started: its workers so far.
        back_s: how long after its leave it joins again; None: never.
    """

    index: int
    name: NodeName
    alive: bool = True
    coordinators: list[NodeCoordinator] = field(default_factory=list)
    link: NodeCoordinator | None = None
    heard_s: float = 0.0
    silence: Silence = field(default_factory=Silence)
    claims_term: bool = False
    started: set[WorkerId] = field(default_factory=set)
    back_s: float | None = None

    def __post_init__(self) -> None:
        self.agent: SimAgent

    def list_living(self) -> Iterator[NodeCoordinator]:
        """Yield the living coordinators of this node."""
        return (coordinator for coordinator in self.coordinators if coordinator.alive)


class AgentOutlet:
    """The ways out of the agent of one node."""

    def __init__(self, world: "AgentNodeWorld", node: SimNode) -> None:
        self._world, self._node = world, node
        self.clock = world.clock

    def start_worker(self, worker: WorkerId) -> None:
        self._node.started.add(worker)
        self._world.start_worker(worker)

    def kill_worker(self, worker: WorkerId) -> None:
        self._world.kill_worker(worker)

    def start_coordinator(self, term: int) -> None:
        self._world.claim_term(self._node, term)

    def send_agent_report(self, report: AgentReport) -> None:
        self._world.send_node_report(self._node, report)

    def trace(self, line: Callable[[], str]) -> None:
        self._world.trace(line)


class AgentNodeWorld(Protocol):
    """The parts of the simulation that an agent of several can reach."""

    clock: Clock

    def start_worker(self, worker: WorkerId) -> None: ...

    def kill_worker(self, worker: WorkerId) -> None: ...

    def claim_term(self, node: SimNode, at_least: int) -> None: ...

    def send_node_report(self, node: SimNode, report: AgentReport) -> None: ...

    def trace(self, line: Callable[[], str]) -> None: ...
