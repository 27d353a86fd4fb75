"""The sum of a block has the same bits for any assignment and order of virtual ranks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from elastane.run.protocol.shares import assign_shares
from elastane.run.protocol.tree import cover, expand_spans
from elastane.run.worker.state.devices import SideStream
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.room_slots import RoomSlots
from elastane.run.worker.state.rooms import Rooms
from elastane.run.worker.state.slot_memory import DeviceSlots, HostSlots, StagedSlots
from elastane.run.worker.state.wire_formats import WireFormat
from tests.run.processes.scripts.rooms import HostMemory


def make_rooms(layout):
    return Rooms(HostMemory(), layout.sections[: layout.parameter_sections])


MEMORIES = {
    "host": HostSlots,
    "device": lambda layout: DeviceSlots(layout, SideStream(layout.device)),
    "rooms": lambda layout: RoomSlots(layout, SideStream(layout.device), make_rooms(layout)),
    "staged": lambda layout: StagedSlots(layout, SideStream(layout.device)),
}


def batched(numbers, size):
    """Return the numbers in batches of a size (``itertools.batched`` of Python 3.12)."""
    numbers = list(numbers)
    return [numbers[begin : begin + size] for begin in range(0, len(numbers), size)]


class Worker:
    """The gradients of one worker without training: random numbers seeded by the virtual rank."""

    device = "cpu"
    make_memory = staticmethod(MEMORIES["host"])

    def __init__(self, size: int, *, exact: bool = True, wire: WireFormat | None = None) -> None:
        model = nn.Sequential(nn.Linear(5, 7000), nn.BatchNorm1d(3)).to(self.device)
        self.layout = ModelLayout(model, torch.optim.SGD(model.parameters(), lr=0.1))
        self.gradients = Gradients(self.layout, exact=exact, memory=self.make_memory(self.layout))
        self.gradients.slots.wire = wire
        self.gradients.begin_round(size)
        self.announced: list[int] = []

    def compute(self, ranks: list[int], *, announce: bool = True) -> None:
        for rank, following in zip(ranks, [*ranks[1:], None], strict=True):
            last = announce and following is None
            self.gradients.begin_leaf(rank, self.announced.extend if last else None, following)
            generator = torch.Generator().manual_seed(rank)
            # A backward pass reaches parameters in any order, and not all of them.
            order = list(enumerate(self.layout.parameters))
            order = order[rank % len(order) :] + order[: rank % len(order)]
            computed = {
                number: torch.randn(parameter.shape, generator=generator).to(self.device)
                for number, parameter in order[: len(order) - (rank % 3 == 2)]
            }
            self.gradients._touched.update(computed)
            # One by one, in pairs, or all at once.
            for numbers in batched(computed, (1, 2, len(order))[rank // 2 % 3]):
                self.gradients.slots.memory.deliver(
                    {number: computed[number] for number in numbers}, self.gradients._leaf.add
                )
            buffers = [torch.zeros(p.shape, dtype=self._dtype(p)) + rank for p in self.layout.buffer_extents]
            self.gradients.end_leaf(buffers)

    def _dtype(self, place) -> torch.dtype:
        return self.layout.sections[place.section].dtype

    def list_parts(self) -> list[tuple[tuple, int]]:
        return [(part.spans, part.slot) for part in self.gradients.slots.list_parts()]


@pytest.fixture(autouse=True, params=MEMORIES, scope="module")
def memory(request):
    """Add gradients in each kind of memory; a device is other memory of the CPU here."""
    Worker.make_memory = staticmethod(MEMORIES[request.param])
    yield
    Worker.make_memory = staticmethod(MEMORIES["host"])


def find_parts(workers: list["Worker"], block: int, writable: "Worker | None") -> list[tuple]:
    """Return the parts that workers have of a block; the slots of one of them may be written."""
    return [
        (
            part.spans,
            worker.layout.view_block(worker.gradients.slots.find_sections(part.slot), block),
            worker is writable,
        )
        for worker in workers
        for part in worker.gradients.slots.list_parts()
    ]


def sum_blocks(size: int, owned: list[list[int]], *, exact: bool = True) -> list[torch.Tensor]:
    """Sum all blocks; worker ``i`` computes ``owned[i]`` in that order, and the first worker reduces."""
    workers = [Worker(size, exact=exact) for _ in owned]
    for worker, ranks in zip(workers, owned, strict=True):
        worker.compute(ranks)
    owner = workers[0]
    for block in range(len(owner.layout.blocks)):
        parts = find_parts(workers, block, owner)
        owner.gradients.slots.reduce(block, parts)
    return list(owner.gradients.slots.sums)


def sum_alone(size: int) -> list[torch.Tensor]:
    return sum_blocks(size, [list(range(size))])


@st.composite
def ownerships(draw):
    size = draw(st.integers(1, 9))
    workers = draw(st.integers(1, min(size, 4)))
    ranks = draw(st.permutations(range(size)))
    places = sorted(draw(st.permutations(range(1, size)))[: workers - 1])
    return size, [list(ranks[a:b]) for a, b in zip([0, *places], [*places, size], strict=True)]


@settings(max_examples=40)
@given(ownerships())
def test_neither_assignment_nor_order_of_virtual_ranks_changes_a_bit(ownership):
    size, owned = ownership
    for sums, expected in zip(sum_blocks(size, owned), sum_alone(size), strict=True):
        assert torch.equal(sums, expected)


@settings(max_examples=10)
@given(size=st.integers(1, 9), workers=st.integers(1, 4))
def test_the_usual_shares_do_not_change_a_bit(size, workers):
    shares = [sorted(expand_spans((share,))) for share in assign_shares(size, (1.0,) * min(workers, size))]
    for sums, expected in zip(sum_blocks(size, shares), sum_alone(size), strict=True):
        assert torch.equal(sums, expected)


def sum_rounded(size: int, owned: list[list[int]], wire: WireFormat, on_node: int = 0) -> list[torch.Tensor]:
    """Sum all blocks as `sum_blocks`; the parts of the first ``on_node`` workers are merged before."""
    workers = [Worker(size, wire=wire) for _ in owned]
    for worker, ranks in zip(workers, owned, strict=True):
        worker.compute(ranks)
    slots = workers[0].gradients.slots
    for block in range(len(workers[0].layout.blocks)):
        parts = find_parts(workers[on_node:], block, None)
        if on_node:
            for part in slots.merge_node(block, find_parts(workers[:on_node], block, None)):
                sections = slots.find_sections(part.slot)
                parts.append((part.spans, workers[0].layout.view_block(sections, block), False))
        slots.reduce(block, parts)
    return list(slots.sums)


@settings(max_examples=20)
@given(ownerships(), st.sampled_from(["int8", "int4", "bf16"]), st.sampled_from([2, 4]), st.integers(0, 2))
def test_groups_are_rounded_to_the_same_bits_wherever_they_are_added(ownership, name, group, on_node):
    size, owned = ownership
    ranks = [[group * rank + step for rank in some for step in range(group)] for some in owned]
    if len(ranks) > 1:
        # Two workers share a group.
        ranks[-1].append(ranks[0].pop())
    wire = WireFormat(name, group)
    expected = sum_rounded(size * group, [list(range(size * group))], wire)
    for sums, alone in zip(sum_rounded(size * group, ranks, wire, on_node), expected, strict=True):
        assert torch.equal(sums, alone)
    plain = sum_alone(size * group)
    assert not torch.equal(expected[0], plain[0])


def test_all_virtual_ranks_in_order_end_in_one_partial_sum():
    for size in range(1, 10):
        worker = Worker(size)
        worker.compute(list(range(size)))
        assert worker.list_parts() == [(((0, size),), worker.gradients.slots.sums_fd)]


def test_there_are_at_most_log2_plus_one_partial_sums():
    worker = Worker(8)
    worker.compute(list(range(8)))
    assert len(worker.gradients.slots.arenas) <= 4


@pytest.mark.parametrize(("size", "slots"), [(2, 1), (4, 1), (8, 2), (16, 3)])
def test_pairs_go_into_the_slot_of_their_sibling(size, slots):
    worker = Worker(size)
    worker.compute(list(range(size)))
    # On a device no gradient waits for its sibling outside a slot.
    waits = not worker.gradients.slots.memory.on_device
    assert len(worker.gradients.slots.arenas) == (slots if waits else size.bit_length() - 1 or 1)


def test_adding_a_pair_in_portions_gives_the_same_bits():
    gradients = Worker(1).gradients
    target, one, other = torch.randn(3, 100_007)
    expected = target + (one + other)
    gradients.slots.add_pair(target, one, other)
    assert torch.equal(target, expected)
    assert gradients.slots._scratch[target.dtype, target.device].numel() < target.numel() / 2


class Aliased(nn.Module):
    """A model with gradients that share memory."""

    def __init__(self) -> None:
        super().__init__()
        self.row, self.column = nn.Parameter(torch.ones(1, 3)), nn.Parameter(torch.ones(3, 1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (self.row.reshape(3) + self.column.reshape(3)) * inputs


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_gradients_that_share_memory_are_added_once_each(size):
    model = Aliased()
    gradients = Gradients(ModelLayout(model, torch.optim.SGD(model.parameters(), lr=0.1)), exact=True)
    gradients.begin_round(size)
    inputs = [torch.tensor([1.0, 2.0, 3.0]) * (rank + 1) for rank in range(size)]
    for rank, one in enumerate(inputs):
        gradients.begin_leaf(rank, None, rank + 1 if rank + 1 < size else None)
        gradients.backward(model(one).sum())
        gradients.end_leaf([])
    row, column = gradients.slots.view_parameters(0)
    assert row.flatten().tolist() == column.flatten().tolist() == sum(inputs).tolist()


@pytest.mark.parametrize("given", [(None, None), (None, -torch.zeros(3)), (-torch.zeros(3), None)])
def test_a_pair_without_a_gradient_counts_as_zeros_of_the_right_sign(given):
    target = -torch.zeros(3)
    whole = [torch.zeros(3) if one is None else one for one in given]
    expected = target + (whole[0] + whole[1])
    Worker(1).gradients.slots.add_pair(target, *given)
    assert torch.equal(target.signbit(), expected.signbit())


def test_every_block_is_announced_once_with_the_last_virtual_rank():
    worker = Worker(4)
    worker.compute([0, 1])
    assert sorted(worker.announced) == list(range(len(worker.layout.blocks)))


@pytest.mark.parametrize("block", [0, 1, 2, 3, 4])
def test_nothing_is_added_to_a_complete_sum_from_a_peer(block):
    worker = Worker(4)
    worker.compute([0, 1])
    whole = torch.full_like(worker.layout.view_block(worker.gradients.slots.sums, block), 5)
    worker.gradients.slots.store_sum(block, whole)
    worker.compute([2, 3])
    assert torch.equal(worker.layout.view_block(worker.gradients.slots.sums, block), whole)


def test_fast_sums_always_have_one_part():
    worker = Worker(5, exact=False)
    worker.compute([4, 0, 2])
    assert worker.list_parts() == [(((0, 1), (2, 3), (4, 5)), worker.gradients.slots.sums_fd)]


def test_fast_sums_equal_the_exact_ones_up_to_rounding():
    fast = sum_blocks(7, [[6, 2], [0, 1, 5], [3, 4]], exact=False)
    for sums, expected in zip(fast, sum_alone(7), strict=True):
        torch.testing.assert_close(sums, expected)


@pytest.mark.parametrize(
    "nodes",
    [
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]]],
        [[[0], [1], [2], [3]], [[4], [5], [6], [7]]],
        [[[0, 1, 2], [3, 4]], [[5, 6], [7]]],
        [[[0, 3, 5], [1]], [[2, 7], [4, 6]]],
    ],
)
def test_sums_merged_on_nodes_first_have_the_bits_of_one_worker(nodes):
    expected = sum_alone(8)
    groups = [[Worker(8) for _ in shares] for shares in nodes]
    for group, shares in zip(groups, nodes, strict=True):
        for worker, ranks in zip(group, shares, strict=True):
            worker.compute(ranks)
    owner, others = groups[0][0], groups[1]
    leader = others[-1]
    for block in range(len(owner.layout.blocks)):
        own = find_parts(others, block, None)
        before = [tensor.clone() for _, tensor, _ in own]
        merged = leader.gradients.slots.merge_node(block, own)
        # A death can void the merged sums, so that the slots are needed again.
        assert all(torch.equal(tensor, kept) for (_, tensor, _), kept in zip(own, before, strict=True))
        assert tuple(part.spans[0] for part in merged) == cover(
            (rank for ranks in nodes[1] for rank in ranks), 8
        )
        there = [
            (
                part.spans,
                leader.layout.view_block(leader.gradients.slots.find_sections(part.slot), block),
                False,
            )
            for part in merged
        ]
        here = find_parts(groups[0], block, owner)
        owner.gradients.slots.reduce(block, [*here, *there])
    assert all(map(torch.equal, owner.gradients.slots.sums, expected))


def test_a_fast_node_leaves_one_part():
    workers = [Worker(8, exact=False) for _ in range(3)]
    for worker, ranks in zip(workers, [[0, 1], [2, 3], [6]], strict=True):
        worker.compute(ranks)
    parts = find_parts(workers, 0, None)
    (merged,) = workers[1].gradients.slots.merge_node(0, parts)
    assert merged.spans == ((0, 4), (6, 7))
    slots = workers[1].gradients.slots
    total = workers[1].layout.view_block(slots.find_sections(merged.slot), 0)
    assert torch.equal(total, parts[0][1] + parts[1][1] + parts[2][1])
