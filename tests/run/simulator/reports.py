"""A simulated worker's reports to the coordinator: its state, lost peers, unacknowledged steps."""

from collections.abc import Callable

import msgspec

from elastane.run.nouns.control import (
    CheckpointPart,
    PeerLost,
    StepReport,
    StepReports,
    WorkerReport,
    WorkerState,
)
from elastane.run.nouns.membership import WorkerId
from elastane.run.nouns.records import LedgerLine, Samples
from elastane.run.protocol import messages
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.protocol.tree import find_spans
from tests.run.simulator.world import WorkerWorld


class Reporter:
    """The reports of one worker.

    Args:
        worker: the number of the worker.
        world: the parts that the worker can reach, with the coordinator.
        member: knows the worker's position in the protocol.

    Attributes:
        parts: the worker's parts of the last few checkpoints, oldest first.
    """

    def __init__(self, worker: WorkerId, world: WorkerWorld, member: MemberMachine) -> None:
        self.worker, self.world, self.member = worker, world, member
        self.parts: tuple[CheckpointPart, ...] = ()
        self._lost: dict[WorkerId, PeerLost] = {}
        self._unacknowledged: list[StepReport] = []
        self._news: tuple[object, ...] = ()
        self._began_s = 0.0
        self._has_trained = False

    def repeat(self, state: WorkerState, compute_median_s: Callable[[], float]) -> None:
        """Send everything again, because messages may be lost."""
        self._news = ()
        self.report(state, compute_median_s)
        for lost in self._lost.values():
            self.world.send_to_coordinator(lost)

    def report_lost_peer(self, peer: WorkerId) -> None:
        self._lost[peer] = PeerLost(worker=self.worker, peer=peer)
        self.world.send_to_coordinator(self._lost[peer])

    def acknowledge(self, step: int) -> None:
        self._unacknowledged = [r for r in self._unacknowledged if r.line.step > step]

    def hand_over(self) -> bytes:
        """Return the reports of steps that no coordinator has acknowledged, for a worker that joins."""
        return msgspec.msgpack.encode(self._unacknowledged)

    def take_over(self, handed: bytes) -> None:
        """Take over the reports of a worker that sends the state, if this one has made no step before it."""
        if not self._has_trained:
            known = {report.line.step for report in self._unacknowledged}
            reports = msgspec.msgpack.decode(handed, type=list[StepReport])
            self._unacknowledged += [report for report in reports if report.line.step not in known]

    def report(self, state: WorkerState, compute_median_s: Callable[[], float]) -> None:
        """Report the worker's position, if it has changed.

        Args:
            state: the state of the worker.
            compute_median_s: returns the median seconds per virtual rank; 0 while unknown.
        """
        member = self.member
        newest = member.newest.number if member.newest else 0
        news = state, member.works_in, newest, member.step, member.complete, self.parts
        if news == self._news:
            return
        self._news = news
        report = WorkerReport(
            worker=self.worker,
            pid=1000 + self.worker,
            host="127.0.0.1",
            port=2000 + self.worker,
            node=self.world.find_node(self.worker),
            sites=self.world.find_sites(self.worker),
            state=state,
            generation=member.works_in,
            newest=member.newest,
            step=member.step,
            complete=member.complete,
            virtual_ranks=len(member.assigned),
            blocks=len(member.held),
            last_blocks=find_spans(member.blocks_to_write) if state == "finished" else (),
            compute_s=compute_median_s(),
            pinned=None if state == "starting" else self.world.pinned,
            checkpoints=self.parts,
            stopped=state == "finished" and member.step < self.world.shape.steps,
        )
        self.world.send_to_coordinator(report)
        if self._unacknowledged:
            self.world.send_to_coordinator(
                StepReports(worker=self.worker, reports=tuple(self._unacknowledged))
            )

    def add_step(self, outcome: messages.RoundOutcome, *, healthy: bool) -> None:
        now = self.world.clock.now
        self._has_trained = True
        generation = 0 if self.member.generation is None else self.member.generation.number
        line = LedgerLine(
            step=outcome.step,
            generation=generation,
            workers=outcome.shares,
            samples=Samples(0, outcome.step, outcome.step + 1, outcome.samples, f"{outcome.checksum:x}"),
            loss=outcome.loss,
            loss_hex=outcome.loss.hex(),
            time=now,
            seconds={},
        )
        took_s = now - self._began_s
        self._began_s = now
        self._unacknowledged.append(StepReport(worker=self.worker, line=line, step_s=took_s, healthy=healthy))
