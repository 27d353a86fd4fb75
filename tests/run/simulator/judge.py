"""The checks at the end of every history."""

from collections import Counter
from collections.abc import Mapping

from elastane.common.exit_codes import ExitCode
from elastane.run.coordinator.deaths import DEATHS
from elastane.run.coordinator.event_summary import ENDS
from elastane.run.nouns.membership import WorkerId
from tests.run.simulator import faults
from tests.run.simulator.checkers import Checker, expect
from tests.run.simulator.coordinator import RunFiles, SimCoordinator
from tests.run.simulator.faults import HistoryPlan
from tests.run.simulator.node_faults import LeaveNode
from tests.run.simulator.storage import SimStorage
from tests.run.simulator.worker import SimWorker


class Judge:
    """Judges a history that has ended.

    Args:
        plan: the plan of the history.
        checker: the checker of the history.
        files: the files of the run.
        workers: every worker of the history, dead ones included.
        storage: the checkpoints of the run.
    """

    def __init__(
        self,
        plan: HistoryPlan,
        checker: Checker,
        files: RunFiles,
        workers: Mapping[WorkerId, SimWorker],
        storage: SimStorage,
    ) -> None:
        self.plan, self.checker, self.files = plan, checker, files
        self.workers, self.storage = workers, storage

    def check_end(self, code: int, why: str) -> None:
        """Check that the run ended early only for a valid reason."""
        # A run ends if all nodes leave that its coordinator knows.
        asked = any(isinstance(fault, faults.StopRun | LeaveNode) for fault in self.plan.faults)
        if code == 0:
            expect(
                self.checker.steps == self.plan.shape.steps,
                f"the run ended after {self.checker.steps} steps: {why}",
            )
            written = self.files.step
            expect(
                written == self.plan.shape.steps,
                f"the ledger has {written} steps",
            )
        elif code == ExitCode.STOPPED_BY_USER:
            expect(asked, f"the run stopped without a request: {why}")
        else:
            # Before the first step an attempt has lost nothing, and the next one begins where it began.
            lost = self.checker.orphaned or self.checker.steps == self.checker.began
            expect(lost or self.checker.undecided, f"the run failed although a worker held its state: {why}")
        expect(
            self.checker.orphaned or not self.checker.lost,
            f"a worker reported state as lost that another one holds: {self.checker.lost}",
        )

    def check_last_checkpoint(self) -> None:
        """Check that a checkpoint has the last state, if the last workers had all of it and could write.

        A worker that the run has given up, because its node was silent, cannot: it is no member any more.
        """
        layout = self.plan.shape.layout
        if not layout.checkpoints or layout.copies == 1:
            return
        deaths = (event for event in self.files.events if event.kind in DEATHS)
        given_up = {worker for event in deaths for worker in event.workers}
        able = [
            worker.worker
            for worker in self.workers.values()
            if worker.state == "finished"
            and worker.member.complete
            and worker.checkpoint_writer.refused_until_s == 0.0
            if worker.worker in self.checker.finished.difference(given_up)
        ]
        held = set().union(*(self.workers[worker].member.held for worker in able))
        kept = self.storage.find_newest()
        expect(
            not held >= layout.everything - {layout.replicated_unit}
            or (kept is not None and kept.step == self.checker.steps),
            f"no checkpoint has the last state, although workers {able} could write it",
        )

    def check_events(self, known_ends: set[WorkerId]) -> None:
        """Check that the event log has each worker's end once, over all reports and coordinators."""
        ends = Counter(
            worker for event in self.files.events if event.kind in ENDS for worker in event.workers
        )
        for worker in self.workers:
            expect(ends[worker] <= 1, f"the event log has {ends[worker]} ends of worker {worker}")
            expect(
                ends[worker] == 1 or worker not in known_ends,
                f"the event log lacks the end of worker {worker}",
            )


def describe_processes(coordinator: SimCoordinator | None, workers: Mapping[WorkerId, SimWorker]) -> str:
    """Describe the state of every living process, for a run without progress."""
    lines = []
    if coordinator is not None:
        roster = coordinator.roster
        lines.append(f"coordinator: {roster.newest} dismissed {list(roster.dismissed)} over {roster.over}")
    for worker in workers.values():
        if worker.alive:
            member = worker.member
            number = member.generation.number if member.generation else 0
            lines.append(
                f"worker {worker.worker}: {worker.state} generation {number} "
                f"committed {member.committed} step {member.step} held {sorted(member.held)} "
                f"behind {sorted(member.behind)} assigned {sorted(member.assigned)}"
            )
    return "\n".join(lines)
