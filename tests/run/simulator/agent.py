"""A simulated agent: it keeps the target number of workers alive, reports, and restarts the coordinator."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from elastane.run.agent.worker_set import WorkerSet, follow_order, take_numbers
from elastane.run.machines.agents.node_agent import has_left, is_last_machine
from elastane.run.nouns.control import (
    AgentReport,
    HandOver,
    KillWorker,
    LeaveRecorded,
    ProcessInfo,
    RunOver,
    SetTarget,
    ToAgent,
    WorkerExit,
)
from elastane.run.nouns.membership import NodeAddress, NodeName, WorkerId
from tests.run.simulator.clock import Clock

BETWEEN_REPORTS_S = 1.0
FAREWELL_S = 5.0
"""How long workers may take to end after the run; then the agent kills the remaining ones."""


class AgentWorld(Protocol):
    """The parts of the simulation that an agent can reach."""

    clock: Clock

    def start_worker(self, worker: WorkerId) -> None: ...

    def kill_worker(self, worker: WorkerId) -> None: ...

    def start_coordinator(self, term: int) -> None: ...

    def send_agent_report(self, report: AgentReport) -> None: ...

    def trace(self, line: Callable[[], str]) -> None: ...


class SimAgent:
    """The agent of a node; that of the first node starts the first coordinator.

    Args:
        world: the parts that it can reach.
        target: the number of workers to keep alive.
        node: the name of its node.
        slots: the most workers on its node; None: it is the first node.
    """

    def __init__(self, world: AgentWorld, target: int, node: NodeName = "", slots: int | None = None) -> None:
        self.world = world
        self.node, self.slots = node, slots
        self.alive = True
        self.between_reports_s = BETWEEN_REPORTS_S
        # As after the first order, which changes nothing.
        self.worker_set = WorkerSet(target=target, total=target, nodes=(NodeAddress(""),))
        if slots is not None:
            self.worker_set = WorkerSet(target=0, numbers=())
        self.stopping = self.leaving = self._leave_recorded = False
        self._idle_since_s = world.clock.now
        self.term = 1
        self.living: list[WorkerId] = []
        self.exits: list[WorkerExit] = []
        self.over: RunOver | None = None
        if slots is None:
            world.start_coordinator(1)
        self._fill()
        self._report_regularly()

    def _fill(self) -> None:
        draining = self.worker_set.draining
        if self.stopping or self.leaving:
            return
        while self.over is None and len(set(self.living) - set(draining)) < self.worker_set.target:
            taken, rest = take_numbers(self.worker_set.numbers, 1)
            if not taken:
                return
            self.worker_set = replace(self.worker_set, numbers=rest)
            self.living += taken
            self.world.start_worker(*taken)

    def _report_regularly(self) -> None:
        if not self.alive:
            return
        if self.worker_set.closed and not self.living and self.slots is not None and not self.is_last:
            self.leaving = True
        self.report()
        if self.over is None or self.living:
            self.world.clock.schedule_after(self.between_reports_s, self._report_regularly)

    def report(self) -> None:
        self.world.send_agent_report(
            AgentReport(
                pid=1,
                node=self.node,
                joins=self.slots is not None,
                slots=self.slots,
                target=self.worker_set.target,
                numbers=self.worker_set.numbers,
                total=self.worker_set.total,
                nodes=self.worker_set.nodes,
                term=self.term,
                workers=tuple(ProcessInfo(role="worker", pid=1000 + w, worker=w) for w in self.living),
                exits=tuple(self.exits),
                draining=self.worker_set.draining,
                by_hand=self.worker_set.by_hand,
                claimed=self.worker_set.claimed,
                closed=self.worker_set.closed,
                stopping=self.stopping,
                leaving=self.leaving,
            )
        )

    # -- leaving -----------------------------------------------------------------------------------------

    @property
    def is_last(self) -> bool:
        """No other node takes part, as far as the agent knows."""
        return is_last_machine(self.node, self.worker_set.nodes, begins=self.slots is None)

    @property
    def is_new(self) -> bool:
        """The node has joined and has had no order yet."""
        return self.slots is not None and not self.worker_set.nodes

    def leave(self) -> None:
        """Let the workers of this node leave; the last node stops the run instead."""
        if self.is_last:
            self.stopping = True
        else:
            self.leaving = True
        self.report()

    @property
    def has_left(self) -> bool:
        """The node has left the run that goes on, so its agent ends."""
        idle_s = self.world.clock.now - self._idle_since_s
        return (
            self.leaving
            and self.over is None
            and has_left(workers=len(self.living), recorded=self._leave_recorded, idle_s=idle_s)
        )

    # -- orders ------------------------------------------------------------------------------------------

    def receive(self, message: ToAgent) -> None:
        if not self.alive:
            return
        match message:
            case SetTarget():
                self.worker_set = follow_order(self.worker_set, message)
                self._fill()
                self.report()
                if message.leave and not self.is_last and not self.leaving:
                    self.leave()
            case KillWorker(worker=worker):
                if worker in self.living:
                    self.world.kill_worker(worker)
            case RunOver():
                if self.over is None:
                    self.over = message
                    self.world.clock.schedule_after(FAREWELL_S, self._end_the_rest)
            case LeaveRecorded():
                self._leave_recorded = True
            case HandOver():
                # The history of several nodes starts the coordinator.
                pass

    def _end_the_rest(self) -> None:
        if not self.alive:
            return
        for worker in tuple(self.living):
            self.world.kill_worker(worker)

    def handle_worker_end(self, worker: WorkerId, code: int, *, hung: bool) -> None:
        """Report the end of a worker's process at once; replace the worker if it is needed."""
        if not self.alive:
            return
        self.living.remove(worker)
        self._idle_since_s = self.world.clock.now
        self.exits.append(WorkerExit(worker=worker, pid=1000 + worker, code=code, hung=hung))
        self._fill()
        self.report()

    def replace_coordinator(self) -> None:
        if self.over is None:
            self.term += 1
            self.world.start_coordinator(self.term)
