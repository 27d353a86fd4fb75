"""Partial sums on a device: peers read copies that are complete when they are announced.

Here the device is other memory of the CPU; ``test_device.py`` has the streams of a GPU.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from elastane.run.worker.state.devices import SideStream
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.slot_memory import DeviceSlots


class Worker:
    """A worker with partial sums on a device, and random gradients seeded by the virtual rank."""

    def __init__(self, size, *, alone):
        model = nn.Sequential(nn.Linear(5, 7000), nn.BatchNorm1d(3))
        self.layout = ModelLayout(model, torch.optim.SGD(model.parameters(), lr=0.1))
        self.memory = DeviceSlots(self.layout, SideStream(self.layout.device))
        self.gradients = Gradients(self.layout, exact=True, memory=self.memory)
        self.slots = self.gradients.slots
        self.announced = []
        self.gradients.begin_round(size, alone=alone)

    def begin(self, rank, following=None, announce=None):
        self.gradients.begin_leaf(rank, announce, following)
        generator = torch.Generator().manual_seed(rank)
        self.pending = [
            (number, torch.randn(parameter.shape, generator=generator))
            for number, parameter in enumerate(self.layout.parameters)
        ]

    def add(self, count=None):
        for number, gradient in self.pending[:count]:
            self.gradients._touched.add(number)
            self.gradients._leaf.add({number: gradient})
        self.pending = self.pending[count or len(self.pending) :]

    def end(self):
        extents = self.layout.buffer_extents
        self.gradients.end_leaf(
            [torch.zeros(e.shape, dtype=self.layout.sections[e.section].dtype) for e in extents]
        )

    def compute(self, ranks):
        for rank, following in zip(ranks, [*ranks, None][1:], strict=True):
            self.begin(rank, following, self.announced.extend if following is None else None)
            self.add()
            self.end()

    def list_own_terms(self, block):
        return [
            (part.spans, self.layout.view_block(self.memory.find_own_sections(part.slot), block), True)
            for part in self.slots.list_parts()
        ]

    def reduce(self):
        """Sum all blocks of a worker that has all virtual ranks; return the sums that the optimizer gets."""
        blocks = range(len(self.layout.blocks))
        for block in blocks:
            self.slots.reduce(block, self.list_own_terms(block))
        trained = [block for block in blocks if not self.layout.is_buffers(block)]
        return [tensor.clone() for tensor in self.memory.place_sums(trained)]


def sum_with_peers(size):
    worker = Worker(size, alone=False)
    worker.compute(list(range(size)))
    return worker.reduce()


@pytest.mark.parametrize("size", range(1, 10))
def test_a_worker_alone_has_the_sums_of_one_with_peers(size):
    worker = Worker(size, alone=True)
    worker.compute(list(range(size)))
    assert all(map(torch.equal, worker.reduce(), sum_with_peers(size)))


def test_nothing_comes_to_the_host_while_a_worker_is_alone():
    worker = Worker(4, alone=True)
    worker.compute([0, 1, 2, 3])
    worker.reduce()
    trained = worker.layout.parameter_sections
    assert not any(section.any() for arena in worker.slots.arenas for section in arena.tensors[:trained])
    assert all(section.any() for section in worker.memory.tensors[0][:trained])


@pytest.mark.parametrize("alone", [True, False])
def test_every_block_is_announced_once(alone):
    worker = Worker(4, alone=alone)
    worker.compute([0, 1])
    assert sorted(worker.announced) == list(range(len(worker.layout.blocks)))


def test_the_blocks_of_a_lone_worker_are_announced_when_the_virtual_rank_has_ended():
    worker = Worker(1, alone=True)
    worker.begin(0, announce=worker.announced.extend)
    worker.add()
    assert worker.announced == []
    worker.end()
    assert sorted(worker.announced) == list(range(len(worker.layout.blocks)))


def test_blocks_are_on_the_host_when_they_are_announced():
    worker = Worker(4, alone=False)
    equal = []

    def compare(blocks):
        for block in blocks:
            for arena, tensors in zip(worker.slots.arenas, worker.memory.tensors, strict=True):
                theirs, ours = (worker.layout.view_block(s, block) for s in (arena.tensors, tensors))
                equal.append(torch.equal(theirs, ours))

    worker.compute([0, 1])
    worker.begin(2, announce=compare)
    worker.add()
    worker.end()
    assert len(worker.slots.arenas) == 2
    assert len(equal) == 2 * len(worker.layout.blocks)
    assert all(equal)


def test_a_sum_from_a_peer_is_not_overwritten_by_a_later_copy():
    worker = Worker(4, alone=False)
    worker.compute([0, 1])
    whole = torch.full_like(worker.layout.view_block(worker.slots.sums, 0), 5)
    worker.begin(2, announce=worker.announced.extend)
    worker.add(1)
    worker.slots.store_sum(0, whole)
    worker.add()
    worker.end()
    assert torch.equal(worker.layout.view_block(worker.slots.sums, 0), whole)
    (section, *_) = worker.memory.place_sums([0])
    assert torch.equal(section[: whole.numel()], whole)


@pytest.mark.parametrize("when", ["before the last", "during the last", "after the last", "after the sums"])
@settings(max_examples=3)
@given(size=st.integers(1, 9))
def test_a_worker_that_is_no_longer_alone_shows_all_its_sums(size, when):
    """A generation with more members may begin at any moment of a round."""
    worker, shared = Worker(size, alone=True), Worker(size, alone=False)
    shared.compute(list(range(size)))
    worker.compute(list(range(size - 1)))
    if when == "before the last":
        worker.slots.share()
    worker.begin(size - 1, announce=worker.announced.extend)
    worker.add(1)
    if when == "during the last":
        worker.slots.share()
    worker.add()
    worker.end()
    if when == "after the sums":
        sums = worker.reduce()
        worker.slots.share()
        trained = worker.layout.parameter_sections
        assert all(map(torch.equal, worker.slots.sums[:trained], sums[:trained]))
        return
    if when == "after the last":
        worker.slots.share()
    assert not worker.memory.private
    for ours, theirs in zip(worker.slots.list_parts(), shared.slots.list_parts(), strict=True):
        assert ours.spans == theirs.spans
        found, expected = (one.slots.find_sections(p.slot) for one, p in ((worker, ours), (shared, theirs)))
        assert all(map(torch.equal, found, expected))


def test_an_error_in_an_announcement_is_raised_in_the_training_thread():
    worker = Worker(2, alone=False)

    def fail(_blocks):
        raise RuntimeError("the reactor is gone")

    worker.begin(0, announce=fail)
    worker.add()
    with pytest.raises(RuntimeError, match="the reactor is gone"):
        worker.end()


def test_the_next_round_begins_with_nothing():
    worker = Worker(3, alone=True)
    worker.compute([0, 1, 2])
    first = worker.reduce()
    worker.gradients.begin_round(3, alone=False)
    worker.compute([0, 1, 2])
    assert all(map(torch.equal, worker.reduce(), first))
