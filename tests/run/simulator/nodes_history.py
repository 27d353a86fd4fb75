"""One history of a run on several nodes: nodes die, the network parts them, and coordinators take over."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import msgspec

from elastane.run.coordinator.actions import Disconnected
from elastane.run.coordinator.roster import NO_TAKEOVER, Takeover
from elastane.run.machines.claims.place import ClaimsUnavailable
from elastane.run.machines.claims.terms import OwnTerm
from elastane.run.machines.succession.silence import (
    EndAgent,
    Silence,
    SilentAgent,
    TakeCharge,
    Wait,
    answer_others,
    decide_in_silence,
    follow_leaver,
    record_answer,
    record_outage,
    record_takeover,
)
from elastane.run.nouns.control import (
    AgentReport,
    Ask,
    AskDrainNode,
    AskStop,
    FromWorker,
    HandOver,
    RunOver,
    ToAgent,
    ToWorker,
)
from elastane.run.nouns.membership import NodeName, WorkerId
from elastane.run.protocol.messages import RoundOutcome
from tests.run.simulator import faults
from tests.run.simulator.agent import SimAgent
from tests.run.simulator.chain import ChainCheck
from tests.run.simulator.checkers import expect
from tests.run.simulator.claims import NodeClaimList, SimClaimList
from tests.run.simulator.faults import Fault
from tests.run.simulator.faulty_network import is_between
from tests.run.simulator.history import History
from tests.run.simulator.node_faults import (
    AskOneSide,
    HideClaims,
    KillNode,
    LeaveNode,
    PartNodes,
    PauseCoordinator,
    SlowClaims,
)
from tests.run.simulator.nodes import (
    CHECK_LINK_S,
    AgentOutlet,
    NodeCoordinator,
    NodePartition,
    SimNode,
)
from tests.run.simulator.storage import StoredCheckpoint

START_S = 0.3
"""The longest time in which a coordinator starts."""

NAMES = ("", "b", "c", "d", "e", "f")


class NodesHistory(History):
    """A history on several nodes, with a claim list and as many coordinators as there happen to be.

    Args:
        plan: see `History`.
        write_line: see `History`.
        origin: see `History`.
    """

    def __init__(
        self,
        plan: faults.HistoryPlan,
        write_line: Callable[[str], None] | None = None,
        origin: StoredCheckpoint | None = None,
    ) -> None:
        self.nodes: list[SimNode] = []
        self.partitions: list[NodePartition] = []
        self.healed: list[NodePartition] = []
        self.skews: dict[NodeName, float] = {}
        self.excused: set[int] = set()
        """The nodes that a partition has cut off from others, so that their workers may be killed."""
        self.outages: set[PartNodes] = set()
        """The short partitions in which the claim list is away for all: they excuse no kill."""
        self.chain = ChainCheck()
        super().__init__(plan, write_line, origin)

    def begin(self) -> None:
        """Start the agent of every node."""
        self.claims = SimClaimList(self.clock)
        self.files.spec = msgspec.structs.replace(
            self.files.spec, listen="10.0.0.1" if self.plan.claims else ""
        )
        self.checker.watch = self._watch_commit
        self.skews = {name: self.clock.random.uniform(-self.plan.skew_s, self.plan.skew_s) for name in NAMES}
        for index, slots in enumerate((None, *self.plan.nodes)):
            node = SimNode(index, NAMES[index])
            self.nodes.append(node)
            target = self.plan.start if slots is None else 0
            node.agent = SimAgent(AgentOutlet(self, node), target, node.name, slots)
            node.agent.between_reports_s = self.files.spec.silence.report_every_s
            if slots is None:
                # As before the first order.
                node.agent.worker_set = replace(node.agent.worker_set, total=0, nodes=())
            self._check_link_regularly(node)

    # -- places ------------------------------------------------------------------------------------------

    def get_node(self, worker: WorkerId) -> SimNode:
        """Return the node of a worker."""
        return next(node for node in self.nodes if worker in node.started)

    def find_node(self, worker: WorkerId) -> NodeName:
        """Return the name of the node that has started a worker."""
        return self.get_node(worker).name

    def choose_site(self, worker: WorkerId) -> str:
        """Return the site of a worker: each node is at one."""
        return self.plan.sites[self.get_node(worker).index % len(self.plan.sites)]

    def find_agent(self, worker: WorkerId) -> SimAgent:
        return self.get_node(worker).agent

    def list_living_nodes(self) -> list[SimNode]:
        return [node for node in self.nodes if node.alive]

    @property
    def newest(self) -> NodeCoordinator | None:
        """The coordinator of the newest term, dead or alive; None: there has been none."""
        started = [coordinator for node in self.nodes for coordinator in node.coordinators]
        return max(started, key=lambda coordinator: coordinator.term, default=None)

    def reaches(self, sender: SimNode, receiver: SimNode) -> bool:
        """Return whether control messages from one node arrive at another one now."""
        if not sender.alive or not receiver.alive:
            return False
        return not any(
            partition.fault.control and partition.cuts(sender.index, receiver.index)
            for partition in self.partitions
        )

    def _hears(self, node: SimNode, coordinator: NodeCoordinator) -> bool:
        place = self.nodes[NAMES.index(coordinator.node)]
        alive = coordinator.alive and not coordinator.paused
        return alive and self.reaches(node, place) and self.reaches(place, node)

    # -- messages ----------------------------------------------------------------------------------------

    def send_to_coordinator(self, message: FromWorker) -> None:
        self.trace(lambda: f"worker {message.worker} tells the coordinator: {message}")
        node = self.get_node(message.worker)
        self._send_up(node, lambda coordinator: coordinator.receive(message))

    def send_node_report(self, node: SimNode, report: AgentReport) -> None:
        self._send_up(node, lambda coordinator: coordinator.receive(report))

    def _send_up(self, node: SimNode, receive: Callable[[NodeCoordinator], None]) -> None:
        coordinator = node.link
        if coordinator is not None and self.reaches(node, self.nodes[NAMES.index(coordinator.node)]):
            self.control_network.deliver(lambda: receive(coordinator) if coordinator.alive else None)

    def send_order(self, sender: NodeCoordinator, worker: WorkerId, message: ToWorker) -> None:
        self.trace(lambda: f"term {sender.term} tells {worker}: {message}")
        node = self.get_node(worker)
        if node.link is sender and self.reaches(self.nodes[NAMES.index(sender.node)], node):
            self.control_network.deliver(lambda: self.workers[worker].receive_order(message))

    def send_agent_order(self, sender: NodeCoordinator, message: ToAgent, node: NodeName | None) -> None:
        self.trace(lambda: f"term {sender.term} tells {'agents' if node is None else node!r}: {message}")
        for other in self.nodes:
            if (node is None or other.name == node) and other.link is sender:
                self._send_agent_order(sender, message, other)

    def _send_agent_order(self, sender: NodeCoordinator, message: ToAgent, node: SimNode) -> None:
        if self.reaches(self.nodes[NAMES.index(sender.node)], node):
            self.control_network.deliver(lambda: self._receive_agent_order(node, message))

    def _receive_agent_order(self, node: SimNode, message: ToAgent) -> None:
        if not isinstance(message, HandOver):
            node.agent.receive(message)
        elif node.alive and node.link is not None and not (node.agent.leaving or node.claims_term):
            leaver = node.link
            names = [other.name for other in node.agent.worker_set.nodes]
            takeover = follow_leaver(node.name, leaver.node, names)
            node.silence = record_takeover(node.silence, self.clock.now)
            self._follow(node, leaver.term, takeover)

    def _follow(self, node: SimNode, term: int, takeover: TakeCharge) -> None:
        known = Takeover(
            silent_s=takeover.silent_s, answering=frozenset(takeover.answering), has_left=takeover.has_left
        )
        self.claim_term(node, term + 1, known)

    def disconnect(self, worker: WorkerId) -> None:
        coordinator = self.get_node(worker).link
        if coordinator is not None:
            self.control_network.deliver(lambda: coordinator.receive(Disconnected(worker)))

    # -- processes ---------------------------------------------------------------------------------------

    def kill_worker(self, worker: WorkerId) -> None:
        victim, node = self.workers[worker], self.get_node(worker)
        is_healthy = victim.alive and not victim.paused and victim.member.works_in > 0
        if is_healthy and victim.state == "member" and not self.is_over:
            expect(
                node.index in self.excused or worker in node.agent.worker_set.draining,
                f"the coordinator kills the healthy member {worker} on node {node.name!r}",
            )
        victim.die()

    def claim_term(self, node: SimNode, at_least: int, known: Takeover = NO_TAKEOVER) -> None:
        """Start a coordinator on a node, which claims its term before it acts."""
        claims = NodeClaimList(self.claims, node.name)
        own_term = OwnTerm(claims, at_least)  # type: ignore[arg-type]
        node.claims_term = True

        def attempt() -> None:
            if not node.alive or node.agent.over is not None:
                return
            try:
                own_term.claim()
                claimed = any(one.holds(own_term.record) for one in claims.read())
            except ClaimsUnavailable:
                claimed = False
            if not claimed:
                self.clock.schedule_after(0.5, attempt)
                return
            node.claims_term = False
            self.trace(lambda: f"node {node.name!r} starts the coordinator of term {own_term.number}")
            takeover = replace(
                known if own_term.is_next else NO_TAKEOVER,
                from_node=self._find_earlier_node(own_term, node),
                waited=own_term.waited,
            )
            node.coordinators.append(NodeCoordinator(self, node.name, own_term, takeover))

        self.clock.schedule_after(self.clock.random.random() * START_S, attempt)

    def _find_earlier_node(self, own_term: OwnTerm, own: SimNode) -> NodeName | None:
        """Return the node that was in charge before, if it was another one."""
        before = 0 if own_term.before is None else own_term.before.number
        for node in self.nodes:
            if node is not own and any(coordinator.term == before for coordinator in node.coordinators):
                return node.name
        return None

    def end_coordinator(self, coordinator: NodeCoordinator, why: str) -> None:
        """Let a coordinator end that is not in charge any more."""
        self.trace(lambda: f"the coordinator of term {coordinator.term} ends: {why}")
        coordinator.alive = False

    # -- takeover ----------------------------------------------------------------------------------------

    def _check_link_regularly(self, node: SimNode) -> None:
        if not node.alive:
            return
        if node.agent.has_left:
            self._end_agent(node, "the node has left")
            return
        self._check_link(node)
        self.clock.schedule_after(
            CHECK_LINK_S * (0.9 + 0.2 * self.clock.random.random()), lambda: self._check_link_regularly(node)
        )

    def _check_link(self, node: SimNode) -> None:
        now, link, newest, limits = self.clock.now, node.link, self.newest, self.files.spec.silence
        if link is not None and self._hears(node, link):
            node.heard_s = now
        elif link is not None and (not link.alive or now - node.heard_s >= limits.limit_s):
            node.link = None
        if node.link is None and newest is not None and self._hears(node, newest):
            node.link, node.heard_s = newest, now
            node.agent.report()
            for worker in node.agent.living:
                self.workers[worker].reconnect()
        if now - node.heard_s < limits.ask_after_s:
            node.silence = Silence()
        elif newest is not None and node.agent.over is None:
            self._act_in_silence(node, newest)

    def _act_in_silence(self, node: SimNode, newest: NodeCoordinator) -> None:
        now = self.clock.now
        try:
            held = NodeClaimList(self.claims, node.name).read()
            node.silence = record_answer(node.silence, held, self.files.signed_s, 1, now)
        except ClaimsUnavailable:
            node.silence = record_outage(node.silence)
        answers = {
            other.name: answer_others(other.silence, now - other.heard_s, len(other.agent.living), now)
            if self.reaches(node, other) and self.reaches(other, node)
            else None
            for other in self.nodes
            if other is not node
        }
        agent = SilentAgent(
            node.name,
            node.silence,
            now - node.heard_s,
            answers,
            newest.node,
            self.files.spec.silence,
            workers=tuple(node.agent.living),
            total=node.agent.worker_set.total,
            claimed=node.agent.worker_set.claimed,
            is_new=node.agent.is_new,
        )
        match decide_in_silence(agent, now):
            case TakeCharge() as takeover:
                node.silence = record_takeover(node.silence, now)
                # Otherwise the coordinator that waits for the claim list is as good as the next one.
                if not node.claims_term:
                    self._follow(node, newest.term, takeover)
            case EndAgent(over=over, is_outcome=True):
                node.agent.receive(over)
            case EndAgent(over=over):
                expect(not node.agent.living, f"node {node.name!r} ends its workers: {over.why}")
                self._end_agent(node, over.why)
            case Wait():
                pass

    # -- faults ------------------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> None:
        match fault:
            case KillNode(which=which, silent=silent):
                living = self.list_living_nodes()
                victim = living[which % len(living)]
                if self._list_staying_nodes() != [victim]:
                    self._kill_node(victim, silent=silent)
            case LeaveNode():
                self._leave_node(fault)
            case PartNodes():
                self._part(fault)
            case PauseCoordinator(for_s=for_s):
                self._pause_coordinator(for_s)
            case HideClaims() | SlowClaims():
                self._disturb_claims(fault)
            case AskOneSide(node=index):
                for coordinator in self.nodes[index].list_living():
                    coordinator.ask(AskStop())
            case faults.KillCoordinator(absent_s=absent_s):
                self._kill_coordinator(absent_s)
            case _:
                super().inject(fault)
                self._excuse_more()
                return
        self._excuse_more()
        self.record_fault()

    def _excuse_more(self) -> None:
        """Excuse the nodes that may lose their workers in open partitions now.

        Another part may be the larger one since the last fault, and the coordinator perhaps has not decided
        yet.
        """
        for partition in self._list_open_partitions():
            self.excused |= self._choose_excused(partition.fault)

    def _kill_node(self, node: SimNode, *, silent: bool) -> None:
        self.trace(lambda: f"node {node.name!r} dies")
        node.alive = node.agent.alive = False
        for coordinator in node.list_living():
            coordinator.alive = False
        for worker in node.agent.living:
            self.workers[worker].die(silent=silent)

    def _list_staying_nodes(self) -> list[SimNode]:
        """Return the nodes that can continue the run."""
        return [node for node in self.list_living_nodes() if not (node.agent.leaving or node.agent.is_new)]

    def _leave_node(self, fault: LeaveNode) -> None:
        staying = self._list_staying_nodes()
        if len(staying) <= 1:
            return
        node = staying[fault.which % len(staying)]
        if node.agent.is_last or self.is_over:
            return
        self.trace(lambda: f"node {node.name!r} is asked to leave")
        # The first node cannot join its own run again.
        node.back_s = fault.back_s if node.index else None
        if fault.drained:
            self.ask(AskDrainNode(node=node.name))
        else:
            node.agent.leave()

    def _end_agent(self, node: SimNode, why: str) -> None:
        """End the agent of a node without workers, and with it a coordinator."""
        self.trace(lambda: f"the agent of node {node.name!r} ends: {why}")
        node.alive = node.agent.alive = False
        for coordinator in node.list_living():
            coordinator.alive = False
        self.record_fault()
        if node.back_s is not None:
            self.clock.schedule_after(node.back_s, lambda: self._join_again(node))

    def _join_again(self, node: SimNode) -> None:
        if self.is_over:
            return
        self.trace(lambda: f"node {node.name!r} joins again")
        self.record_fault()
        node.alive, node.link, node.claims_term = True, None, False
        node.heard_s, node.silence = self.clock.now, Silence()
        slots = self.plan.nodes[node.index - 1]
        node.agent = SimAgent(AgentOutlet(self, node), 0, node.name, slots)
        node.agent.between_reports_s = self.files.spec.silence.report_every_s
        self._check_link_regularly(node)

    def _part(self, fault: PartNodes) -> None:
        partition = NodePartition(fault, lambda worker: self.get_node(worker).index)
        self.partitions.append(partition)
        list_back_s = min(self.claims.away_until_s.get(node.name, 0.0) for node in self.nodes)
        if fault.short and list_back_s >= self.clock.now + fault.for_s:
            self.outages.add(fault)
        if fault.mesh:
            self.peer_network.begin_partition(partition)
            if fault.short:
                self.peer_network.delay_until(partition, self.clock.now + fault.for_s)
            else:
                self.peer_network.break_links(partition, one_way=fault.one_way)

        def heal() -> None:
            self.partitions.remove(partition)
            self.healed.append(partition)
            if fault.mesh:
                self.peer_network.heal(partition)
            self.record_fault()

        self.clock.schedule_after(fault.for_s, heal)

    def _disturb_claims(self, fault: HideClaims | SlowClaims) -> None:
        until_s = self.clock.now + fault.for_s
        if isinstance(fault, SlowClaims):
            self.claims.slow_until_s = until_s
        else:
            nodes = [self.nodes[index] for index in fault.nodes] or self.nodes
            self.claims.hide([node.name for node in nodes], until_s)
            self.claims.forgetful = fault.forgetful
        self.clock.schedule_after(fault.for_s, self.record_fault)

    def _list_open_partitions(self) -> list[NodePartition]:
        """Return the partitions of now, and the healed ones on which no coordinator has decided yet.

        The connections that those have broken are still between members.
        """
        members = {w.worker for w in self.workers.values() if w.alive and w.member.works_in > 0}
        broken = [tuple(pair) for pair in self.peer_network.broken if pair <= members]
        return self.partitions + [
            partition for partition in self.healed if any(is_between(partition, a, b) for a, b in broken)
        ]

    def _choose_excused(self, fault: PartNodes) -> set[int]:
        """Return the nodes that may lose their workers: the smaller part, or all if that is not clear."""
        if fault in self.outages:
            return set()
        if any(self.claims.is_away(node.name) for node in self.nodes):
            # Perhaps only the smaller part reaches the claim list, and so only this part can go on.
            return {node.index for node in self.nodes}
        inside, outside = set(fault.side), {node.index for node in self.nodes} - set(fault.side)
        others = [one for one in self._list_open_partitions() if one.fault not in self.outages]
        if fault.one_way or len(others) > 1:
            return inside | outside
        present = [worker for worker in self.workers.values() if worker.alive and worker.member.works_in]
        members = [worker.worker for worker in present]
        # The run goes on without those that leave or have left; a coordinator may count them until then.
        staying = [
            worker.worker
            for worker in present
            if worker.state != "leaving" and not self.get_node(worker.worker).agent.leaving
        ]
        # Agents count all their workers, a coordinator those that it needs.
        living = [worker.worker for worker in self.workers.values() if worker.alive]
        excused = set[int]()
        for counted in (members, staying, living):
            sizes = Counter(self.get_node(worker).index in inside for worker in counted)
            excused |= inside if sizes[True] <= sizes[False] else set()
            excused |= outside if sizes[False] <= sizes[True] else set()
        return excused

    def _pause_coordinator(self, for_s: float) -> None:
        coordinator = self.newest
        if coordinator is None or coordinator.paused or not coordinator.alive:
            return
        coordinator.paused = True

        def resume() -> None:
            self.record_fault()
            coordinator.resume()

        self.clock.schedule_after(for_s, resume)

    def _kill_coordinator(self, absent_s: float) -> None:
        newest = self.newest
        if newest is None or not newest.alive:
            return
        newest.alive = False
        node = self.nodes[NAMES.index(newest.node)]
        node.claims_term = True
        self.clock.schedule_after(absent_s, lambda: self.claim_term(node, newest.term + 1))

    def ask(self, ask: Ask) -> None:
        if (newest := self.newest) is not None:
            newest.ask(ask)

    # -- the end -----------------------------------------------------------------------------------------

    def _watch_commit(self, worker: WorkerId, outcome: RoundOutcome) -> None:
        generation = self.workers[worker].member.generation
        if generation is not None:
            self.chain.check_commit(worker, outcome, generation)

    @property
    def is_over(self) -> bool:
        return any(node.agent.over is not None for node in self.nodes)

    @property
    def has_ended(self) -> bool:
        return all(node.agent.over is not None and not node.agent.living for node in self.list_living_nodes())

    @property
    def outcome(self) -> RunOver:
        codes = {node.agent.over.code for node in self.list_living_nodes() if node.agent.over is not None}
        expect(len(codes) == 1, f"the run has several outcomes: {codes}")
        over = next(node.agent.over for node in self.list_living_nodes())
        self.chain.check_end(self.claims.held if self.plan.claims else None, self.checker.finished)
        newest = self.newest
        self.coordinator = newest
        self.earlier_coordinators = [
            one for node in self.nodes for one in node.coordinators if one is not newest
        ]
        return over if over is not None else super().outcome
