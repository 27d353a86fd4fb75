"""The agent of one machine in a run on several ones; no machine is the head of the run."""

import asyncio
import math
import os
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

import msgspec

from elastane.common.errors import ElastaneError
from elastane.common.exit_codes import ExitCode
from elastane.common.untrusted_data import Malformed
from elastane.run.agent.agent import BACKLOG, Agent
from elastane.run.agent.control_link import ControlLink
from elastane.run.agent.coordinators import Coordinators
from elastane.run.agent.processes import Commands, start_coordinator
from elastane.run.agent.worker_set import WorkerSet
from elastane.run.connections.endpoint import (
    AnotherAttempt,
    CoordinatorEndpoint,
    build_endpoint,
    read_endpoint,
    read_own_endpoint,
)
from elastane.run.connections.run_certificate import create_certificate, read_certificate
from elastane.run.machines.agents.neighbours import NeighbourPoll, answer_neighbours
from elastane.run.machines.agents.run_pages import RunPages, find_shared_places
from elastane.run.machines.claims.records import HeldSlot
from elastane.run.machines.claims.terms import REFUSED_CODE, SUPERSEDED_CODE
from elastane.run.machines.claims.urls import open_claims
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
from elastane.run.machines.succession.takeover import Answers, CoordinatorHeard
from elastane.run.machines.tickets.ticket_files import open_tickets
from elastane.run.nouns.control import AgentReport, HandOver, LeaveRecorded, RunOver, SetTarget, ToAgent
from elastane.run.nouns.machine_address import MachineAddress, publish_address
from elastane.run.nouns.membership import NodeAddress, NodeName, SiteName
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.sites import publish_sites
from elastane.run.nouns.spec import Resumed, RunSpec

CHECK_EVERY_S = 0.1
READ_CLAIMS_S = 1.0
"""How long the claim list may take to answer. A short limit of silence makes no service faster."""
REST_S = 60.0
"""How long a machine on which coordinators keep dying leaves the charge to others."""


class NodeAgent(Agent):
    """Runs workers on this machine, and the coordinator of the run while this machine is in charge.

    Args:
        run_dir: of the run, with the name of this machine; the machines share the directory.
        address: where this machine listens, and where the others reach it.
        slots: the most workers on this machine; None: without limit.
        begins: this machine begins the attempt, so its coordinator has the first term.
        resumed: the beginning of this attempt; None: it is the first attempt of the run.
        opened: is called with the address of this agent once it answers tickets.
        sites: of which this machine may read the data; the spec has those of the first machine.
        ticket: the one of a site with which this machine has joined, as its id and key; empty: it has none.

    Attributes:
        left: this agent has ended and the run goes on: a user wished it, or something failed here.
        concludes: the run is over, and this machine writes its results.
    """

    def __init__(
        self,
        run_dir: RunDir,
        spec: RunSpec,
        address: MachineAddress,
        *,
        slots: int | None,
        begins: bool,
        commands: Commands | None = None,
        resumed: Resumed | None = None,
        opened: Callable[[NodeAddress], None] = lambda _: None,
        sites: tuple[SiteName, ...] = (),
        ticket: str = "",
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(run_dir, spec, commands, resumed)
        self._opened, self._say = opened, say
        self._sites, self._ticket = sites, ticket
        if not begins:
            # The coordinator says how many workers this machine runs, and under which numbers.
            self.workers.worker_set = WorkerSet(target=0, numbers=())
        elif slots is not None:
            self.workers.worker_set = replace(self.workers.worker_set, target=min(spec.start, slots))
        self._address, self._port = address, 0
        self._slots, self._begins = slots, begins
        self._leaving = self.left = self.concludes = False
        self._leave_recorded = False
        self._is_unfit = False
        """This machine leaves because it gets no workers."""
        self._idle_s = time.monotonic()
        """When this machine last had a worker."""
        self._charge = asyncio.Event()
        self._began_s = -math.inf
        """When the coordinator of this agent was last seen at its imports."""
        self._failed_s = -math.inf
        """When coordinators had last died too often on this machine."""
        self._poll = NeighbourPoll(run_dir, spec.silence.answer_s)
        self._silence = Silence()
        self._read_sign = _choose_sign(run_dir)

    def leave(self) -> None:
        """Let the workers of this machine leave at the next commit; the run goes on without them.

        The last machine stops the run instead.
        """
        if self.is_last:
            self.stop()
        else:
            self._leaving = True
            self.workers.stop_starting()
            self._changed.set()

    @property
    def is_last(self) -> bool:
        """Whether no other machine takes part."""
        return is_last_machine(self._run_dir.node, self.workers.worker_set.nodes, begins=self._begins)

    @property
    def in_charge(self) -> bool:
        """Whether a coordinator of this machine serves the run."""
        return self._coordinators is not None and self._coordinators.in_charge

    async def _run_until_end(self) -> RunOver:
        with self._address.listen(BACKLOG) as for_coordinator, self._address.listen(BACKLOG) as for_agents:
            self._port = for_agents.getsockname()[1]
            publish_address(self._run_dir, self._address)
            if self._run_dir.node:
                publish_sites(self._run_dir, self._sites)
            if self._begins:
                create_certificate(self._run_dir)
                open_tickets(self._run_dir)
            endpoint = build_endpoint(
                self._run_dir,
                self._address,
                for_coordinator.getsockname()[1],
                read_certificate(self._run_dir),
                self._attempt,
            )
            if self._begins:
                self._run_dir.endpoint.write_bytes(msgspec.json.encode(endpoint))
            link = self._make_link(self._find_endpoint, self.spec.silence.report_every_s)
            start = partial(
                start_coordinator,
                self._commands,
                self._run_dir,
                socket_fd=for_coordinator.fileno(),
                lifeline=self._lifeline,
            )
            self._coordinators = Coordinators(start, self._changed.set, self._first_term, self._attempt)
            try:
                pages = self._make_pages()
                async with answer_neighbours(
                    self._run_dir, for_agents, lambda: self._make_answer(link), pages
                ):
                    self._opened(self._own_node)
                    over = await self._serve_until_end(link, self._share_charge(self._coordinators, link))
                    await pages.let_clients_finish()
                    return over
            finally:
                self._withdraw(endpoint)

    @property
    def _own_node(self) -> NodeAddress:
        return NodeAddress(self._run_dir.node, self._address.reached_at, self._port)

    def _find_endpoint(self) -> CoordinatorEndpoint:
        """Return the endpoint of the coordinator in charge; end this agent if another attempt has begun.

        Raises:
            OSError, Malformed: the run directory names no coordinator of this attempt.
        """
        try:
            return read_own_endpoint(self._run_dir, self._attempt)
        except AnotherAttempt as error:
            if error.is_later:
                # This machine did not hear the coordinator say that this attempt ends.
                self.told_over = True
                self.finish(RunOver(code=ExitCode.FAILED, why=str(error), lost=True))
            raise

    def _make_pages(self) -> RunPages:
        # Before its first order an agent knows only itself.
        return RunPages(
            self._run_dir,
            self.spec.name,
            lambda: self.workers.worker_set.nodes or (self._own_node,),
            find_shared_places(self._run_dir, self.spec),
        )

    def _withdraw(self, own: CoordinatorEndpoint) -> None:
        """Remove the endpoint of this machine at the end of the run; another one may begin an attempt now."""
        try:
            published = read_endpoint(self._run_dir)
        except (OSError, Malformed):
            return
        is_own = (published.node, published.port) == (own.node, own.port)
        if is_own and self.concludes and self._guard.check() is None:
            self._run_dir.endpoint.unlink(missing_ok=True)

    async def _share_charge(self, coordinators: Coordinators, link: ControlLink) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_coordinators(coordinators))
            group.create_task(self._watch_run(coordinators, link))

    async def _keep_coordinators(self, coordinators: Coordinators) -> None:
        """Keep coordinators running while this machine is in charge, and a standby otherwise."""
        if self._begins:
            self._charge.set()
        while True:
            await coordinators.stand_by(until=self._charge)
            code, deaths = await coordinators.keep()
            self._charge.clear()
            if code == SUPERSEDED_CODE:
                continue
            if code == REFUSED_CODE:
                what = "the claim list refuses the first claim of the run, so nothing has begun"
                self.finish(
                    RunOver(code=ExitCode.BAD_INPUT, why=f"{what}; {self._describe_log_end('coordinator')}")
                )
            elif self.is_last:
                self._give_up("coordinator", code, deaths)
            self._failed_s = time.monotonic()

    async def _watch_run(self, coordinators: Coordinators, link: ControlLink) -> None:
        """Take charge when it is this machine's turn; end this agent when its machine has left the run."""
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(CHECK_EVERY_S)
            asleep_s = time.monotonic() - began_s
            if asleep_s > self.spec.silence.asleep_s:
                # This process was stopped and heard nothing meanwhile.
                link.heard_s += asleep_s
            running = self.workers.worker_set
            workers, now = len(running.living) + len(running.requested), time.monotonic()
            if workers:
                self._idle_s = now
            idle_s = now - self._idle_s
            may_leave = not (self._begins or self._leaving or self.is_last)
            if running.closed and not workers and may_leave:
                self._is_unfit = True
                self.leave()
            if self._leaving and has_left(workers=workers, recorded=self._leave_recorded, idle_s=idle_s):
                self.finish(build_farewell(without_workers=self._is_unfit))
            if coordinators.begins:
                # It is not silent: on a busy machine, or from a slow disk, its imports take a while.
                self._began_s = now
            if min(link.silent_s, now - self._began_s) < self.spec.silence.ask_after_s:
                self._silence = Silence()
                self._poll.stop()
            else:
                await self._act_in_silence(coordinators, link)

    async def _act_in_silence(self, coordinators: Coordinators, link: ControlLink) -> None:
        answers = await self._observe()
        endpoint, running, now = self._find_last_endpoint(), self.workers.worker_set, time.monotonic()
        agent = SilentAgent(
            self._run_dir.node,
            self._silence,
            min(link.silent_s, now - self._began_s),
            answers,
            self._run_dir.node if endpoint is None else endpoint.node,
            self.spec.silence,
            workers=tuple(running.living),
            total=running.total,
            claimed=running.claimed,
            first_term=self._first_term,
            is_new=not self._begins and not running.nodes,
            rests=now < self._failed_s + REST_S,
            has_failed=self._failed_s > link.heard_s,
        )
        match decide_in_silence(agent, now):
            case TakeCharge() as takeover:
                self._take_charge(coordinators, takeover, endpoint)
            case EndAgent(over=over, is_outcome=is_outcome):
                self.told_over |= is_outcome
                self.finish(over)
            case Wait():
                pass

    def _take_charge(
        self, coordinators: Coordinators, takeover: TakeCharge, endpoint: CoordinatorEndpoint | None
    ) -> None:
        """Start the coordinator that follows the one of an endpoint."""
        self._write_log("coordinator", f"this machine takes charge: {takeover.why}")
        coordinators.take_over(0 if endpoint is None else endpoint.term, takeover)
        self._charge.set()
        self._silence = record_takeover(self._silence, time.monotonic())

    def _follow_leaver(self) -> None:
        """Take charge because the machine in charge has left the run."""
        endpoint, rests = self._find_last_endpoint(), time.monotonic() < self._failed_s + REST_S
        if self._coordinators is None or endpoint is None or rests or self._charge.is_set():
            # Some machine has its turn soon, as after a death.
            return
        nodes = [node.name for node in self.workers.worker_set.nodes]
        takeover = follow_leaver(self._run_dir.node, endpoint.node, nodes)
        self._take_charge(self._coordinators, takeover, endpoint)

    async def _observe(self) -> Answers | None:
        """Ask the other agents and read the claim list; return the answers of the agents so far."""
        others = tuple(
            node for node in self.workers.worker_set.nodes if node.name != self._run_dir.node and node.port
        )
        try:
            answers = self._poll.read(others)
            held, sign = await asyncio.to_thread(self._read_signs)
        except (OSError, ElastaneError):
            self._silence = record_outage(self._silence)
            return None
        self._silence = record_answer(self._silence, held, sign, self._first_term, time.monotonic())
        return answers

    def _make_answer(self, link: ControlLink) -> CoordinatorHeard:
        return answer_others(self._silence, link.silent_s, len(self.workers.living), time.monotonic())

    def _read_signs(self) -> tuple[tuple[HeldSlot, ...], int]:
        """Return the claim list, and the time stamp that the coordinator in charge renews regularly.

        The time stamp is 0 if no coordinator is named.

        Raises:
            ElastaneError: the claim list is away.
            OSError: the file system of the run is away.
        """
        held = open_claims(self._run_dir, self.spec, wait_s=READ_CLAIMS_S).read()
        return held, self._read_sign()

    def _find_last_endpoint(self) -> CoordinatorEndpoint | None:
        """Return the endpoint of the last coordinator; None if nothing says it: then the run goes on here."""
        try:
            return read_endpoint(self._run_dir)
        except (OSError, Malformed):
            return None

    def handle_order(self, message: ToAgent) -> None:
        """Carry out a message from the coordinator."""
        closed = self.workers.worker_set.closed
        super().handle_order(message)
        if self.workers.worker_set.closed not in ("", closed):
            self._say(self.workers.worker_set.closed)
        if isinstance(message, SetTarget) and message.leave and not self.is_last:
            self.leave()
        if isinstance(message, LeaveRecorded):
            self._leave_recorded = True
        if isinstance(message, HandOver) and not self._leaving:
            self._follow_leaver()

    def make_report(self) -> AgentReport:
        """Return the present report to the coordinator, with the name, address and slots of this machine."""
        return msgspec.structs.replace(
            super().make_report(),
            node=self._run_dir.node,
            joins=not self._begins,
            host=self._address.reached_at,
            port=self._port,
            slots=self._slots,
            leaving=self._leaving,
            sites=self._sites if self._run_dir.node else self.spec.sites,
            ticket=self._ticket,
        )

    def finish(self, over: RunOver) -> None:
        """End the run on this machine with an outcome; the first one counts."""
        if self._over is None:
            self.left = not self.told_over and (self._leaving or not self.is_last)
            self.concludes = not self.left and (self.in_charge or self._inherits_end())
        super().finish(over)

    def _inherits_end(self) -> bool:
        if self._run_dir.is_private:
            # It lacks the records. The next attempt finds that the run is over.
            return False
        try:
            charged = read_endpoint(self._run_dir).node
        except (OSError, Malformed):
            return False
        return inherits_end(self._run_dir.node, self.workers.worker_set.nodes, charged)


# -- the sign of life of the coordinator in charge --------------------------------------------------------


def _choose_sign(run_dir: RunDir) -> Callable[[], int]:
    """Return what reads the time stamp that the coordinator in charge renews; 0: no coordinator is named.

    It raises `OSError` and `ElastaneError` while the stamp cannot be read.
    """
    if not run_dir.is_private:
        return partial(_read_sign, run_dir)
    from elastane.run.connections.kept_endpoint import KeptEndpoint

    return KeptEndpoint(run_dir, timeout_s=READ_CLAIMS_S).refresh


def _read_sign(run_dir: RunDir) -> int:
    try:
        # An open file, because a network file system may remember attributes for a minute.
        with run_dir.files.open(run_dir.endpoint) as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except (FileNotFoundError, Malformed):
        return 0


# -- the decisions of a machine that a user asks to leave a run; `node_agent` beside this acts on them ---


LONGEST_LEAVE_S = 10.0
"""How long a machine without workers waits until the run has recorded that it has left."""


def is_last_machine(node: NodeName, nodes: Collection[NodeAddress], *, begins: bool) -> bool:
    """Return whether no other machine takes part in the run, so that its end would be the end of the run.

    Args:
        node: the machine.
        nodes: the machines of the run in the last order of the coordinator; empty: it has sent no order yet.
        begins: the run has begun on this machine; another one is not alone before its first order.
    """
    return all(other.name == node for other in nodes) if nodes else begins


def inherits_end(node: NodeName, nodes: Collection[NodeAddress], charged: NodeName) -> bool:
    """Return whether a machine writes the results of a run that ends while the machine in charge leaves it.

    The coordinator of a machine that has left serves the run until another one does, perhaps to its end.

    Args:
        node: the machine.
        nodes: the machines of the run in the last order of the coordinator.
        charged: the machine of this coordinator.
    """
    names = {other.name for other in nodes}
    return charged not in names and node == min(names, default=charged)


def has_left(*, workers: int, recorded: bool, idle_s: float) -> bool:
    """Return whether a leaving machine has left, so that its agent may end.

    Args:
        workers: the number of its workers that have not ended yet.
        recorded: the run has recorded that the machine has left.
        idle_s: how long the machine has had no worker; a run that does not answer keeps no machine forever.
    """
    return workers == 0 and (recorded or idle_s > LONGEST_LEAVE_S)


def build_farewell(*, without_workers: bool) -> RunOver:
    """Return the outcome for a machine that has left a run that goes on.

    Args:
        without_workers: it has left because it gets no workers.
    """
    if without_workers:
        return RunOver(code=ExitCode.FAILED, why="this machine has left the run, because it gets no workers")
    return RunOver(code=ExitCode.OK, why="this machine has left the run")
