"""The memory of a simulated worker: state per unit, and gradients in slots, as symbols."""

from collections.abc import Iterable

from elastane.run.protocol.messages import PartialSum
from elastane.run.protocol.tree import Span, cover, expand_spans, find_sibling, merge_siblings, plan_merges
from tests.run.simulator.reads import UNFINISHED
from tests.run.simulator.reference_run import ReferenceRun, add_sums

NODE_SLOT = 1 << 16
"""The number of the first slot for merged parts of a node."""


class Memory:
    """Parameters, optimizer state and slots of one worker, or of one of its processes.

    Args:
        reference: the run without any fault.
        together: as in `elastane.run.protocol.layout.Layout`: the gradient of a virtual rank is the sum of
            this many.

    Attributes:
        parameters: the value of each unit.
        optimizer: the optimizer state of each unit; None for units without any here.
        slots: per slot, the partial sum of each block; slot 0 ends with the whole sums.
        node_slots: per merged part of the worker's node, its sum of each block that the worker leads.
        rooted: the blocks of slot 0 that have whole sums.
        released: the script has continued since the last training step.
    """

    def __init__(self, reference: ReferenceRun, together: int = 1) -> None:
        self.parameters = list(reference.parameters[0])
        self.optimizer: list[int | None] = list(reference.optimizer[0])
        self.slots: list[dict[int, int]] = [{}]
        self.node_slots: list[dict[int, int]] = []
        self.rooted: set[int] = set()
        self.released = True
        self._together = together
        self._nodes: dict[Span, int] = {}
        self._announced: set[Span] = set()
        self._size = 0
        self._place = 0
        self._merges: list[tuple[int, int]] = []

    def begin_round(self, size: int) -> None:
        """Forget all sums: the previous round has committed."""
        self.rooted.clear()
        self._nodes.clear()
        self._announced.clear()
        self._size = size

    def begin_leaf(self, virtual_rank: int) -> None:
        """Choose the slot of a leaf's gradient and the slots to merge with it, as a binary counter does."""
        node = self._find_leaf(virtual_rank)
        taken = set(self._nodes.values())
        place = next(number for number in range(len(taken) + 1) if number not in taken)
        while len(self.slots) <= place:
            self.slots.append({})
        self._place = place
        self._merges = []
        while (other := find_sibling(node, self._size)) is not None and other in self._nodes:
            there = self._nodes.pop(other)
            left, right = (place, there) if node < other else (there, place)
            self._merges.append((left, right))
            # The lower slot remains, so that an aligned power of two ends in slot 0.
            node, place = (min(node[0], other[0]), max(node[1], other[1])), min(left, right)
        self._nodes[node] = place

    def _find_leaf(self, virtual_rank: int) -> Span:
        first = virtual_rank - virtual_rank % self._together
        return first, first + self._together

    def find_slot(self, node: Span) -> int:
        """Return the slot of a node that this worker has announced."""
        return self._nodes[node]

    def add(self, block: int, value: int) -> None:
        """Add one block's gradient of the current leaf."""
        if block in self.rooted:
            return
        self.slots[self._place][block] = value
        for left, right in self._merges:
            total = add_sums(self.slots[left][block], self.slots[right][block])
            self.slots[min(left, right)][block] = total

    def begin_assignment(self) -> None:
        """Forget which nodes are announced: virtual ranks of another assignment may be added to them."""
        self._announced.clear()

    def take_parts(self, following: Iterable[int]) -> tuple[PartialSum, ...]:
        """Return the parts that are final, because no later virtual rank is added, and not announced yet.

        Args:
            following: the later virtual ranks.
        """
        ranks = expand_spans([*self._nodes, *map(self._find_leaf, following)])
        final = set(cover(ranks, self._size)) & self._nodes.keys()
        parts = sorted(final - self._announced)
        if following:
            self._announced |= final
        return tuple(PartialSum((node,), self._nodes[node]) for node in parts)

    def read_slot(self, slot: int, block: int) -> int:
        """Return the sum of a block in a slot of this worker, or of its node."""
        return self.node_slots[slot - NODE_SLOT][block] if slot >= NODE_SLOT else self.slots[slot][block]

    def merge_node(self, block: int, parts: list[tuple[Span, int]]) -> tuple[PartialSum, ...]:
        """Merge parts of a block, each a node of the tree and its symbol; return what is left."""
        values = [value for _, value in parts]
        plan = merge_siblings([span for span, _ in parts], self._size)
        for merge in plan.merges:
            values[merge.target] = add_sums(values[merge.target], values[merge.source])
        while len(self.node_slots) < len(plan.left):
            self.node_slots.append({})
        for slot, (_, number) in zip(self.node_slots, plan.left, strict=False):
            slot[block] = values[number]
        return tuple(PartialSum(spans, NODE_SLOT + place) for place, (spans, _) in enumerate(plan.left))

    def hide_sums(self, blocks: Iterable[int]) -> None:
        """Let these blocks of slot 0 be unfinished until `store_sum`: the worker writes to them."""
        self.slots[0].update(dict.fromkeys(blocks, UNFINISHED))

    def hide_values(self, units: Iterable[int]) -> None:
        """Let the values of these units be unfinished until the worker has written them."""
        for unit in units:
            self.parameters[unit] = UNFINISHED

    def store_sum(self, block: int, total: int) -> None:
        """Store a whole sum."""
        self.slots[0][block] = total
        self.rooted.add(block)


def sum_parts(parts: list[tuple[Span, int]], size: int) -> int:
    """Return the whole sum of parts, each a node and its symbol."""
    values = [value for _, value in parts]
    last = 0
    for merge in plan_merges([span for span, _ in parts], size):
        values[merge.target] = add_sums(values[merge.target], values[merge.source])
        last = merge.target
    return values[last]
