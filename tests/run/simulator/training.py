"""A simulated training thread: it computes symbols, applies steps and enters the next rounds."""

from collections.abc import Callable

import msgspec

from elastane.run.protocol import actions, events, messages
from elastane.run.protocol.events import RoundKind
from elastane.run.protocol.messages import Leaf
from tests.run.simulator.process import WorkerProcess
from tests.run.simulator.reference_run import (
    compute_leaf,
    compute_node,
    compute_nothing,
    run_script_code,
    update_rest,
    update_unit,
)
from tests.run.simulator.reports import Reporter
from tests.run.simulator.world import WorkerWorld


class TrainingThread:
    """The training thread of one worker.

    Args:
        worker: the worker; its process may die at any moment.
        world: the parts that the worker can reach.
        reporter: receives reports of steps; None: another process of the worker reports them.
        process: the number of this process in a worker that computes neighbouring virtual ranks together.

    Attributes:
        kind: the kind of the current round.
        step: the step that it computes, or that follows the evaluation it computes.
    """

    def __init__(
        self, worker: WorkerProcess, world: WorkerWorld, reporter: Reporter | None, process: int = 0
    ) -> None:
        self.worker = worker
        self._process = process
        self._world, self._reporter = world, reporter
        self._memory, self._member = worker.memory, worker.member
        self.kind: RoundKind = "train"
        self.step = 0
        self._round = 0
        self._queue: list[int] = []
        self._checks: list[int] = []
        self._left_out: frozenset[int] = frozenset()
        self._checked: int | None = None
        # The microbatches of spot checks of which this worker has computed wrong gradients.
        self._spoilt: set[tuple[int, int]] = set()
        self._assignment = 0
        self._computing = False
        self._leaf_s: list[float] = []
        self._applied: messages.RoundOutcome | None = None

    def compute_median_s(self) -> float:
        """The median seconds per virtual rank; 0 while unknown."""
        return sorted(self._leaf_s)[len(self._leaf_s) // 2] if self._leaf_s else 0.0

    def begin(self, begin: actions.BeginRound) -> None:
        if begin.round == 1 and self._reporter is not None:
            self._world.checker.rounds.clear()
        if begin.round != self._round:
            self._memory.begin_round(self._world.shape.count_virtual_ranks(self.kind))
        self._round, self.step = begin.round, begin.step

    def compute(self, compute: actions.Compute) -> None:
        self._assignment, self._checked = compute.assignment, compute.checked
        self._left_out = compute.left_out
        self._memory.begin_assignment()
        self._queue.extend(compute.virtual_ranks[self._process :: self._world.shape.layout.together])
        self._compute_next()

    def recompute(self, virtual_rank: int) -> None:
        """Compute a virtual rank for a spot check, after those for the sums."""
        self._checks.append(virtual_rank)
        self._compute_next()

    def leave(self) -> None:
        self._queue.clear()
        self._checks.clear()

    def enter(self, kind: RoundKind) -> None:
        shape = self._world.shape
        if self.worker.state == "leaving":
            return
        self.kind = kind
        due = shape.is_checkpoint_due(kind, self._member.step + 1)
        self.worker.handle(events.RoundEntered(kind, shape.count_virtual_ranks(kind), due))

    def _compute_next(self) -> None:
        if self._computing or not (self._queue or self._checks):
            return
        self._computing = True
        recomputes = not self._queue
        rank = (self._queue or self._checks).pop(0)
        pace = self._world.pace
        took_s = (0.2 + self.worker.draw_duration(0.8)) * pace.leaf_s * self.worker.slowness
        self._leaf_s = [*self._leaf_s[-20:], took_s]
        if self.kind != "train":
            self.worker.schedule(took_s, lambda: self._finish_leaf(rank))
            return
        self._world.checker.check_computation(self.worker, self.step)
        is_check = recomputes or rank == self._checked
        gradients = self._compute_gradients(rank, is_check=is_check)
        prints = tuple(f"{gradient:x}" for gradient in gradients) if is_check else ()
        if recomputes:
            self.worker.schedule(took_s, lambda: self._finish_check(rank, prints))
            return
        self._memory.begin_leaf(rank)
        if self._queue:
            self.worker.schedule(took_s, lambda: self._finish_gradients(rank, gradients, prints))
            return
        assignment, parts = self._assignment, self._memory.take_parts(())
        blocks = list(range(len(gradients)))
        self._world.clock.random.shuffle(blocks)
        for place, block in enumerate(blocks):
            done_s = took_s * (place + 1) / (len(blocks) + 1)
            self.worker.schedule(done_s, self._plan_partial_sum(gradients[block], block, assignment, parts))
        self.worker.schedule(took_s, lambda: self._finish_leaf(rank, prints))

    def _compute_gradients(self, rank: int, *, is_check: bool) -> list[int]:
        """Return the gradient of each block; a fault spoils one of a spot check, once per microbatch."""
        model = hash(tuple(self._memory.parameters))
        blocks = range(self._world.shape.layout.blocks)
        if rank in self._left_out:
            return [compute_nothing(self.step, rank, block) for block in blocks]
        self._world.checker.check_site(self.worker.worker, rank, self._world.find_sites(self.worker.worker))
        layout = self._world.shape.layout
        first = rank - rank % layout.together
        node = first, first + layout.together
        gradients = [compute_node(self.step, block, model, node, layout.virtual_ranks) for block in blocks]
        place = self.step, rank
        if is_check and self.worker.spoils and place not in self._spoilt:
            self._spoilt.add(place)
            gradients[-1] ^= 1 + self.worker.worker
            self._world.checker.spoilt.add(self.step)
        return gradients

    def _plan_partial_sum(
        self, gradient: int, block: int, assignment: int, parts: tuple[messages.PartialSum, ...]
    ) -> Callable[[], None]:
        def finish() -> None:
            if self.worker.state == "leaving":
                return
            self._memory.add(block, gradient)
            self.worker.handle(events.PartialSumsFinal(assignment, (block,), parts))

        return finish

    def _finish_gradients(self, rank: int, gradients: list[int], prints: tuple[str, ...]) -> None:
        if self.worker.state == "leaving":
            return
        for block, gradient in enumerate(gradients):
            self._memory.add(block, gradient)
        if self._world.early_parts and (parts := self._memory.take_parts(self._queue)):
            blocks = tuple(range(len(gradients)))
            self.worker.handle(events.PartialSumsFinal(self._assignment, blocks, parts))
        self._finish_leaf(rank, prints)

    def _finish_leaf(self, rank: int, prints: tuple[str, ...] = ()) -> None:
        self._computing = False
        if self.worker.state == "leaving":
            return
        step = self.step if self.kind == "train" else self._member.step
        is_left_out = self.kind == "train" and rank in self._left_out
        worker = self.worker.worker
        leaf = Leaf(rank, worker) if is_left_out else compute_leaf(self.kind, step, rank, worker)
        self.worker.handle(events.Computed(msgspec.structs.replace(leaf, fingerprints=prints)))
        self._compute_next()

    def _finish_check(self, rank: int, prints: tuple[str, ...]) -> None:
        self._computing = False
        if self.worker.state == "leaving":
            return
        leaf = compute_leaf(self.kind, self.step, rank, self.worker.worker)
        self.worker.handle(events.Recomputed(msgspec.structs.replace(leaf, fingerprints=prints)))
        self._compute_next()

    def finish_round(self, commit: actions.CommitRound) -> None:
        outcome, kind = commit.outcome, self.kind
        self._world.trace(lambda: f"worker {self.worker.worker} commits {outcome}")
        self._world.narrate(
            lambda: (
                f"{kind} {outcome.step} is committed: {format_shares(outcome)}"
                if outcome.shares
                else f"{kind} is committed"
            )
        )
        pace = self._world.pace
        if self._reporter is not None:
            self._world.checker.check_commit(self.worker.worker, kind, outcome)
            if kind == "train":
                self._reporter.add_step(outcome, healthy=commit.healthy)
        if kind == "train":
            self.worker.schedule(self.worker.draw_duration(pace.apply_s), lambda: self._apply(commit))
        else:
            self.worker.schedule(
                self.worker.draw_duration(pace.user_s), lambda: self._enter_next_round(outcome)
            )

    def _apply(self, commit: actions.CommitRound) -> None:
        memory, shape, step = self._memory, self._world.shape, commit.outcome.step
        for unit in range(shape.rest):
            if unit not in commit.held:
                memory.optimizer[unit] = None
        for unit in sorted(commit.held - {shape.rest}):
            state = memory.optimizer[unit]
            if state is None:
                raise AssertionError(
                    f"worker {self.worker.worker} applies step {step} to unit {unit} without state"
                )
            sums = [memory.slots[0][block] for block in shape.list_blocks(unit)]
            memory.parameters[unit], memory.optimizer[unit] = update_unit(
                memory.parameters[unit], state, sums
            )
        memory.parameters[shape.rest], memory.optimizer[shape.rest] = update_rest(
            memory.parameters[shape.rest], step
        )
        self._world.checker.check_application(self.worker, commit.held)
        self._applied, memory.released = commit.outcome, False
        self.worker.handle(events.Applied())

    def continue_script(self) -> None:
        """Let the script continue: some time later its code after the step has changed every value."""
        self._memory.released = True
        self.worker.schedule(self.worker.draw_duration(self._world.pace.user_s), self._run_script_code)

    def _run_script_code(self) -> None:
        memory, outcome = self._memory, self._applied
        assert outcome is not None, "released after a step"
        self._world.checker.check_release(self.worker, outcome.step)
        memory.parameters = run_script_code(memory.parameters, outcome.step)
        self.worker.schedule(
            self.worker.draw_duration(self._world.pace.user_s), lambda: self._enter_next_round(outcome)
        )

    def _enter_next_round(self, outcome: messages.RoundOutcome) -> None:
        following = self._world.shape.choose_next_round(self.kind, outcome)
        if following is not None:
            self.enter(following)
        elif self.worker.state != "leaving":
            self.worker.state = "finished"
            self.worker.report()


def format_shares(outcome: messages.RoundOutcome) -> str:
    return " ".join(
        f"{worker}[{','.join(f'{start}:{stop}' for start, stop in some)}]"
        for worker, some in outcome.shares.items()
    )
