"""Symbolic training: the effect of a step on the state, as hashes, and the reference run.

Every value is an integer hash of all its inputs, in order. Two values are equal exactly if the same leaves
were summed in the same tree with the same parameters.
"""

from collections.abc import Collection
from functools import lru_cache

import msgspec

from elastane.run.protocol.commit import compute_outcome
from elastane.run.protocol.events import Measured, RoundKind
from elastane.run.protocol.gangs import combine_measurements
from elastane.run.protocol.layout import Layout
from elastane.run.protocol.messages import Leaf, RoundOutcome, Vote
from elastane.run.protocol.sampling import mix
from elastane.run.protocol.tree import Span

LEAF, NODE, OPTIMIZER, PARAMETER, REST, SCRIPT, STATE, LEFT_OUT = range(1, 9)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a simulated run's script.

    Args:
        layout: the layout of the run.
        steps: the number of training steps.
        evaluate_every: the training steps between two evaluations; 0: no evaluations.
        evaluation_size: the number of virtual ranks of an evaluation.
        checkpoint_every: the training steps between two checkpoints; 0: only the one at the end.
    """

    layout: Layout
    steps: int
    evaluate_every: int = 0
    evaluation_size: int = 3
    checkpoint_every: int = 0

    def is_digest_due(self, kind: RoundKind, step: int) -> bool:
        """Return whether votes of a round carry digests of the state after ``step`` steps."""
        return kind == "settle" or (kind == "train" and step > 0 and step % self.layout.digest_every == 0)

    def is_checkpoint_due(self, kind: RoundKind, step: int) -> bool:
        """Return whether a round requests a checkpoint of the state after ``step`` steps."""
        return kind == "train" and self.checkpoint_every > 0 and step % self.checkpoint_every == 0

    def count_virtual_ranks(self, kind: RoundKind) -> int:
        """Return the number of virtual ranks of a round."""
        match kind:
            case "train":
                return self.layout.virtual_ranks
            case "evaluate":
                return self.evaluation_size
            case "settle":
                return 0

    def choose_next_round(self, kind: RoundKind, outcome: RoundOutcome) -> RoundKind | None:
        """Return the round that the script enters next; None: the run is over."""
        if kind == "settle":
            return None
        ending = outcome.stop or outcome.step >= self.steps
        if kind == "train" and self.evaluate_every and outcome.step % self.evaluate_every == 0:
            return "evaluate"
        return "settle" if ending else "train"

    def list_blocks(self, unit: int) -> tuple[int, ...]:
        """Return the blocks of gradients that update a unit of state."""
        blocks = self.layout.blocks
        if self.layout.copies is not None:
            return (unit,)
        return tuple(sorted({unit % blocks, (unit + 1) % blocks}))

    def list_units(self, block: int) -> tuple[int, ...]:
        """Return the units of state in a block."""
        return tuple(unit for unit in range(self.rest) if block in self.list_blocks(unit))

    @property
    def rest(self) -> int:
        """The last unit, which every worker keeps."""
        return self.layout.units - 1


def compute_gradient(step: int, virtual_rank: int, block: int, model: int) -> int:
    """Return one virtual rank's gradient of a block, computed with a model."""
    return hash((LEAF, step, virtual_rank, block, model))


def compute_nothing(step: int, virtual_rank: int, block: int) -> int:
    """Return what a virtual rank that a round leaves out adds to a sum, on any worker."""
    return hash((LEFT_OUT, step, virtual_rank, block))


def add_sums(left: int, right: int) -> int:
    return hash((NODE, left, right))


def compute_sum(step: int, block: int, model: int, size: int, left_out: Collection[int] = ()) -> int:
    """Return the sum over all virtual ranks, by the tree's definition: halves of the next power of two."""
    width = 1
    while width < size:
        width *= 2
    return compute_node(step, block, model, (0, width), size, left_out)


def compute_node(
    step: int, block: int, model: int, node: Span, size: int, left_out: Collection[int] = ()
) -> int:
    """Return the sum over the virtual ranks of a node of the tree; its width is a power of two."""
    start, stop = node
    if stop - start == 1:
        nothing = start in left_out
        return compute_nothing(step, start, block) if nothing else compute_gradient(step, start, block, model)
    middle = (start + stop) // 2
    left = compute_node(step, block, model, (start, middle), size, left_out)
    if middle >= size:
        return left
    return add_sums(left, compute_node(step, block, model, (middle, stop), size, left_out))


def compute_leaf(kind: RoundKind, step: int, virtual_rank: int, worker: int) -> Leaf:
    """Return the leaf of a virtual rank; ``step`` counts the training steps begun."""
    scrambled = mix(step * 1009 + virtual_rank)
    if kind == "evaluate":
        return Leaf(virtual_rank, worker, sums={"seen": float(scrambled % 97), "correct": 0.1 * virtual_rank})
    return Leaf(
        virtual_rank,
        worker,
        loss=scrambled % 1000 / 7,
        weight=float(1 + scrambled % 3),
        samples=1 + scrambled % 3,
        checksum=scrambled,
        untouched=(0,) if step % 2 else (),
    )


def compute_norm(total: int) -> tuple[float, ...]:
    return (total % 10007 / 3,)


def compute_digests(parameters: list[int], optimizer: list[int]) -> tuple[str, str]:
    return f"{hash((STATE, *parameters)):x}", f"{hash((STATE, *optimizer)):x}"


class ReferenceRun:
    """The run without any fault, on one worker; it leaves out the virtual ranks that the history leaves out.

    Attributes:
        parameters: per step, from 0, the value of each unit after the script's code that follows the step.
        applied: per step, from 0, the value of each unit right after the step.
        optimizer: per step, from 0, the optimizer state of each unit.
        sums: per step, from 1, the sum of each block.
        left_out: per step, from 1, the virtual ranks without results.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        units = shape.layout.units
        self.parameters = [[hash((PARAMETER, unit)) for unit in range(units)]]
        self.optimizer = [[hash((OPTIMIZER, unit)) for unit in range(units)]]
        self.applied = [list(self.parameters[0])]
        self.sums: list[list[int]] = [[]]
        self.left_out: list[frozenset[int]] = [frozenset()]
        self._outcomes: dict[tuple[RoundKind, int], RoundOutcome] = {}
        self._advance()

    def learn(self, step: int, left_out: frozenset[int]) -> None:
        """Let a step leave out some virtual ranks, and the steps after it none."""
        if self.left_out[step] != left_out:
            for per_step in (self.parameters, self.applied, self.optimizer, self.sums, self.left_out):
                del per_step[step:]
            self._outcomes.clear()
            self._advance(left_out)

    def compute_sums(self, step: int, left_out: frozenset[int]) -> list[int]:
        """Return the sum of each block in a step that leaves out some virtual ranks."""
        if step < len(self.sums) and self.left_out[step] == left_out:
            return self.sums[step]
        model, layout = hash(tuple(self.parameters[step - 1])), self.shape.layout
        size = layout.virtual_ranks
        return [compute_sum(step, block, model, size, left_out) for block in range(layout.blocks)]

    def _advance(self, left_out: frozenset[int] = frozenset()) -> None:
        shape = self.shape
        for step in range(len(self.sums), shape.steps + 1):
            self.left_out.append(left_out)
            self.sums.append(self.compute_sums(step, left_out))
            left_out = frozenset()
            parameters, optimizer = list(self.parameters[-1]), list(self.optimizer[-1])
            for unit in range(shape.rest):
                sums = [self.sums[step][block] for block in shape.list_blocks(unit)]
                parameters[unit], optimizer[unit] = update_unit(parameters[unit], optimizer[unit], sums)
            parameters[shape.rest], optimizer[shape.rest] = update_rest(parameters[shape.rest], step)
            self.applied.append(parameters)
            self.parameters.append(run_script_code(parameters, step))
            self.optimizer.append(optimizer)

    def get_outcome(self, kind: RoundKind, step: int) -> RoundOutcome:
        """Return the outcome of the round of a kind after ``step`` steps, without the division of work."""
        if (kind, step) not in self._outcomes:
            self._outcomes[kind, step] = self._compute_outcome(kind, step)
        return self._outcomes[kind, step]

    def _compute_outcome(self, kind: RoundKind, step: int) -> RoundOutcome:
        shape = self.shape
        left_out = self.left_out[step] if kind == "train" else frozenset[int]()
        leaves = {
            rank: Leaf(rank, 0) if rank in left_out else compute_leaf(kind, step, rank, 0)
            for rank in range(shape.count_virtual_ranks(kind))
        }
        norms = dict(enumerate(compute_norm(total) for total in self.sums[step])) if kind == "train" else {}
        before = step - 1 if kind == "train" else step
        digests = {}
        if shape.is_digest_due(kind, before):
            for block in range(shape.layout.blocks):
                units = shape.list_units(block)
                digests[block] = compute_digests(
                    [self.parameters[before][unit] for unit in units],
                    [self.optimizer[before][unit] for unit in units],
                )
        if (together := shape.layout.together) > 1:
            digests = combine_measurements([Measured(0, {}, digests)] * together).digests
        vote = Vote(generation=0, round=0, leaves=(), norms=norms, digests=digests)
        outcome = compute_outcome(0, step, leaves, {0: vote}, left_out=left_out)
        return msgspec.structs.replace(outcome, shares={})


def update_unit(parameter: int, optimizer: int, sums: list[int]) -> tuple[int, int]:
    """Return a unit's value and optimizer state after a step."""
    state = hash((OPTIMIZER, optimizer, *sums))
    return hash((PARAMETER, parameter, state)), state


def run_script_code(parameters: list[int], step: int) -> list[int]:
    """Return the values of all units after the script's code between two steps, which changes them all."""
    everything = hash(tuple(parameters))
    return [hash((SCRIPT, step, value, everything)) for value in parameters]


def update_rest(rest: int, step: int) -> tuple[int, int]:
    """Return the rest unit after a step, which every worker computes itself."""
    return hash((REST, rest, step)), hash((OPTIMIZER, REST, step))


@lru_cache(maxsize=64)
def get_reference(shape: Shape) -> ReferenceRun:
    return ReferenceRun(shape)
