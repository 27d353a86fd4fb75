"""What must hold in every history. Safety is checked at the moment it could break, liveness at the end."""

from collections.abc import Mapping

import msgspec

from elastane.api.membership import WorkerId
from elastane.protocol.events import RoundKind
from elastane.protocol.messages import RoundOutcome
from elastane.protocol.tree import expand_spans
from tests.simulator.process import WorkerProcess
from tests.simulator.reference_run import Shape, get_reference


class Violation(AssertionError):
    """A history broke a promise."""


def expect(holds: bool, story: str) -> None:
    if not holds:
        raise Violation(story)


class Checker:
    """Watches one history.

    Args:
        shape: the shape of the run.
        workers: every worker that ever lived.
        began: training steps made in earlier attempts.
    """

    def __init__(self, shape: Shape, workers: Mapping[WorkerId, WorkerProcess], began: int = 0) -> None:
        self.shape = shape
        self.workers = workers
        self.rounds: dict[int, tuple[RoundKind, RoundOutcome]] = {}
        self.began = self.steps = began
        self.witnesses: dict[int, set[WorkerId]] = {}
        self.finished: set[WorkerId] = set()
        self.lost: list[tuple[WorkerId, tuple[int, ...]]] = []
        self.orphaned = False

    # -- safety --------------------------------------------------------------------------------------------

    def computes(self, worker: WorkerProcess, step: int) -> None:
        """Nobody computes with stale parameters."""
        expect(
            1 <= step <= self.shape.steps, f"worker {worker.worker} computes step {step} beyond the last one"
        )
        stale = [
            unit
            for unit, value in enumerate(get_reference(self.shape).parameters[step - 1])
            if worker.memory.parameters[unit] != value
        ]
        expect(not stale, f"worker {worker.worker} computes step {step} with wrong values of units {stale}")

    def committed(self, worker: WorkerId, kind: RoundKind, outcome: RoundOutcome) -> None:
        """A round has one outcome, that of the quiet run, and every virtual rank was computed once."""
        expected = get_reference(self.shape).outcome(kind, outcome.step)
        known = self.rounds.setdefault(outcome.round, (kind, outcome))
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
        )
        expect(
            neutral == expected,
            f"worker {worker} commits round {outcome.round} ({kind}) otherwise than the quiet run:\n"
            f"  {neutral}\n  {expected}",
        )
        shares = [rank for some in outcome.shares.values() for rank in expand_spans(some)]
        expect(
            sorted(shares) == list(range(self.shape.size(kind))),
            f"round {outcome.round} did not compute every virtual rank once: {outcome.shares}",
        )
        if kind == "train":
            expect(outcome.step <= self.steps + 1, f"step {outcome.step} committed after step {self.steps}")
            self.steps = max(self.steps, outcome.step)
            self.witnesses.setdefault(outcome.step, set()).add(worker)

    def applied(self, worker: WorkerProcess, held: frozenset[int]) -> None:
        """The state of what a worker holds is that of the quiet run."""
        step = worker.member.step
        ideal = get_reference(self.shape)
        for unit in held:
            expect(
                worker.memory.parameters[unit] == ideal.applied[step][unit]
                and worker.memory.optimizer[unit] == ideal.optimizer[step][unit],
                f"worker {worker.worker} has unit {unit} wrong after step {step}",
            )

    def released(self, worker: WorkerProcess, step: int) -> None:
        """A script that runs on finds every value as the step left it."""
        expect(
            worker.memory.parameters == get_reference(self.shape).applied[step],
            f"the script of worker {worker.worker} finds wrong values after step {step}",
        )

    # -- whether a run could be saved ----------------------------------------------------------------------

    def state_is_lost(self, worker: WorkerId, units: tuple[int, ...]) -> None:
        self.lost.append((worker, units))

    def after_death(self, victim: WorkerProcess) -> None:
        """Remember whether the living hold every unit between them; one death must not end that."""
        if self.orphaned or self.state_survives():
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

    def state_survives(self) -> bool:
        """Every unit has a living holder who is at most one round behind and has voted for that."""
        if self.steps == self.began < self.shape.steps:
            return True
        living = [worker for worker in self.workers.values() if worker.alive and worker.state != "leaving"]
        if self.steps == self.began:
            # Nothing is left to train: whoever is there has the last word, and needs no optimizer for it.
            return any(worker.member.works_in for worker in living)
        held: set[int] = set()
        for worker in living:
            held |= worker.member.held
        return set(range(self.shape.rest)) <= held

    def ledger_is_excused(self, step: int) -> bool:
        """Everyone who made this step died before a coordinator had heard of it."""
        return not self.witnesses[step] & self.finished

    def dismissed(self, worker: WorkerId) -> None:
        self.finished.add(worker)
