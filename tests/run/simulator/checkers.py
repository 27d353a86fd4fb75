"""The checks of every history: safety at the moment when it could break, liveness at the end."""

from collections.abc import Callable, Collection, Mapping

import msgspec

from elastane.run.nouns.membership import WorkerId
from elastane.run.protocol.events import RoundKind
from elastane.run.protocol.messages import RoundOutcome
from elastane.run.protocol.spot_checks import Finding
from elastane.run.protocol.tree import expand_spans
from tests.run.simulator.process import WorkerProcess
from tests.run.simulator.reference_run import Shape, get_reference


class Violation(AssertionError):
    """A promise that a history has broken."""


class Unchecked(Exception):
    """A gradient was spoilt, and its worker is the last one and knows no other result: wrong bytes."""


def expect(holds: bool, story: str) -> None:
    if not holds:
        raise Violation(story)


class Checker:
    """Checks one history.

    Args:
        shape: the shape of the run.
        workers: every worker of the history, dead ones included.
        began: the number of training steps committed in earlier attempts.

    Attributes:
        reference: the run without any fault.
        rounds: the committed rounds since all members began with round 1: a run can begin again if its
            coordinator has not learned of a step, and then void rounds shift the numbers.
        torn: the reads of memory that has changed meanwhile; see `tests.run.simulator.reads`.
        checked: each worker that has received a result of a spot check, with the round and its step.
    """

    def __init__(self, shape: Shape, workers: Mapping[WorkerId, WorkerProcess], began: int = 0) -> None:
        self.shape = shape
        self.reference = get_reference(shape)
        self.workers = workers
        self.rounds: dict[int, tuple[RoundKind, RoundOutcome]] = {}
        self.began = self.steps = began
        self.finished: set[WorkerId] = set()
        self.lost: list[tuple[WorkerId, tuple[int, ...]]] = []
        self.orphaned = False
        self.agreed = 0
        self.spoilt: set[int] = set()
        self.checked: set[tuple[WorkerId, int, int]] = set()
        self.found: set[WorkerId] = set()
        self.undecided = False
        self.torn: list[str] = []
        self.watch: Callable[[WorkerId, RoundOutcome], None] = lambda _worker, _outcome: None
        """Called with every commit."""

    # -- safety ------------------------------------------------------------------------------------------

    def check_computation(self, worker: WorkerProcess, step: int) -> None:
        """Check that a worker does not compute with stale parameters."""
        expect(
            1 <= step <= self.shape.steps, f"worker {worker.worker} computes step {step} beyond the last one"
        )
        stale = [
            unit
            for unit, value in enumerate(self.reference.parameters[step - 1])
            if worker.memory.parameters[unit] != value
        ]
        expect(not stale, f"worker {worker.worker} computes step {step} with wrong values of units {stale}")

    def check_site(self, worker: WorkerId, rank: int, sites: Collection[str]) -> None:
        """Check that a worker computes no virtual rank of another site."""
        rank_sites = self.shape.layout.rank_sites
        expect(
            not rank_sites or rank_sites[rank] in sites,
            f"worker {worker} at {sites} computes virtual rank {rank}, which is bound to another site",
        )

    def check_commit(self, worker: WorkerId, kind: RoundKind, outcome: RoundOutcome) -> None:
        """Check that the outcome is that of the reference run, and each virtual rank counts once."""
        known, left_out = (
            self.rounds.setdefault(outcome.round, (kind, outcome)),
            expand_spans(outcome.left_out),
        )
        expect(
            known[1].left_out == outcome.left_out,
            f"round {outcome.round} leaves out {known[1].left_out} and, for {worker}, {outcome.left_out}",
        )
        if kind == "train":
            expect(
                not left_out or self.shape.layout.absent == "skip", f"round {outcome.round} leaves out a site"
            )
            self.reference.learn(outcome.step, left_out)
        expected = self.reference.get_outcome(kind, outcome.step)
        expect(
            known[0] == kind, f"round {outcome.round} is {known[0]} for one worker and {kind} for {worker}"
        )
        expect(
            known[1].step == outcome.step, f"round {outcome.round} is step {known[1].step} and {outcome.step}"
        )
        neutral = msgspec.structs.replace(
            outcome,
            round=0,
            next_generation=0,
            stop=False,
            checkpoint=False,
            complete=(),
            refused=(),
            shares={},
            agreed=0,
        )
        if neutral != expected and outcome.step in self.spoilt and not outcome.agreed:
            generation = self.workers[worker].member.generation
            expect(generation is not None and len(generation.workers) == 1, f"no check of {outcome.step}")
            heard = (worker, outcome.round, outcome.step) in self.checked
            expect(
                not heard, f"worker {worker} commits step {outcome.step} against a result that it received"
            )
            raise Unchecked
        expect(
            neutral == expected,
            f"worker {worker} commits round {outcome.round} ({kind}) unlike the reference run:\n"
            f"  {neutral}\n  {expected}",
        )
        shares = [rank for some in outcome.shares.values() for rank in expand_spans(some)]
        expect(
            sorted({*shares, *left_out}) == list(range(self.shape.count_virtual_ranks(kind)))
            and len(shares) + len(left_out) == self.shape.count_virtual_ranks(kind),
            f"round {outcome.round} did not compute every virtual rank once: {outcome.shares}",
        )
        together = self.shape.layout.together
        expect(
            all(edge % together == 0 for some in outcome.shares.values() for span in some for edge in span),
            f"round {outcome.round} divided virtual ranks that are computed together: {outcome.shares}",
        )
        self.agreed = max(self.agreed, outcome.agreed)
        self.watch(worker, outcome)
        if kind == "train":
            expect(outcome.step <= self.steps + 1, f"step {outcome.step} committed after step {self.steps}")
            self.steps = max(self.steps, outcome.step)

    def record_check(self, worker: WorkerId, round_: int, step: int) -> None:
        """Record that a worker has received another one's result of a spot check."""
        self.checked.add((worker, round_, step))

    def check_application(self, worker: WorkerProcess, held: frozenset[int]) -> None:
        """Check that the state that a worker holds is that of the reference run."""
        step = worker.member.step
        ideal = self.reference
        for unit in held:
            expect(
                worker.memory.parameters[unit] == ideal.applied[step][unit]
                and worker.memory.optimizer[unit] == ideal.optimizer[step][unit],
                f"worker {worker.worker} has unit {unit} wrong after step {step}",
            )

    def check_release(self, worker: WorkerProcess, step: int) -> None:
        """Check that a script that continues finds every value as the step left it."""
        expect(
            worker.memory.parameters == self.reference.applied[step],
            f"the script of worker {worker.worker} finds wrong values after step {step}",
        )

    def check_finding(self, finding: Finding) -> None:
        """Check that a spot check blames a worker with a fault, and is undecided only if all have one."""
        if finding.wrong is not None:
            expect(self.workers[finding.wrong].spoils, f"{finding} blames a worker without a fault")
            self.found.add(finding.wrong)
            return
        expect(
            all(self.workers[worker].spoils for worker in finding.workers),
            f"{finding} is undecided although a worker without a fault has computed it",
        )
        self.undecided = True

    # -- survival of the state ----------------------------------------------------------------------

    def record_lost_state(self, worker: WorkerId, units: tuple[int, ...]) -> None:
        self.lost.append((worker, units))

    def check_death(self, victim: WorkerProcess) -> None:
        """Record whether the living workers still hold every unit; one death alone must not change that."""
        if self.orphaned or self.does_state_survive():
            return
        self.orphaned = True
        generation = victim.member.generation
        copies = self.shape.layout.copies
        if copies == 1 or generation is None or len(generation.workers) == 1:
            return
        members = [self.workers[worker] for worker in generation.workers]
        redundant = all(
            member.member.complete
            and member.member.works_in == generation.number
            and (member.alive or member is victim)
            for member in members
        )
        expect(not redundant, f"the death of worker {victim.worker} alone lost state that had copies")

    def does_node_loss_leave_copies(self, lost: list[WorkerId]) -> bool:
        """Return whether copies must survive these workers of one node: all members have their blocks."""
        generations = [self.workers[worker].member.generation for worker in lost]
        newest = max((g for g in generations if g is not None), key=lambda g: g.number, default=None)
        copies = self.shape.layout.copies
        if (
            newest is None
            or copies == 1
            or {member.node for member in newest.members}
            == {member.node for member in newest.members if member.worker in lost}
        ):
            return False
        return all(
            self.workers[worker].alive
            and self.workers[worker].member.complete
            and self.workers[worker].member.works_in == newest.number
            for worker in newest.workers
        )

    def does_state_survive(self) -> bool:
        """Return whether every unit has a living holder, at most one round late and with its vote."""
        if self.steps == self.began < self.shape.steps:
            return True
        living = [worker for worker in self.workers.values() if worker.alive and worker.state != "leaving"]
        if self.steps == self.began:
            # Nothing is left to train: any living worker can end the run, without the optimizer.
            return any(worker.member.works_in for worker in living)
        held: set[int] = set()
        for worker in living:
            held |= worker.member.held
        return set(range(self.shape.rest)) <= held

    def record_dismissal(self, worker: WorkerId) -> None:
        self.finished.add(worker)
