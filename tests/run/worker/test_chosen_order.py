"""A script may choose the order of an epoch, know sums over a whole step, and gather numbers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import elastane
from elastane.common.errors import BadInput
from elastane.run.worker.data.epoch_order import EpochOrder

LENGTH = 22


@given(length=st.integers(1, 200), epoch=st.integers(0, 5), data=st.data())
def test_an_epoch_reads_the_positions_in_the_given_order(length, epoch, data):
    orders = {number: data.draw(st.permutations(range(length))) for number in (0, epoch, epoch + 1)}
    order = EpochOrder(orders.__getitem__, length)
    cut = data.draw(st.integers(0, length))
    for number in (0, epoch, epoch + 1, epoch):
        found = order.find_indices(number, range(cut)) + order.find_indices(number, range(cut, length))
        assert found == list(orders[number])


@pytest.mark.parametrize(
    ("returned", "fault"),
    [
        (None, "returned None"),
        ([0, 1], "2 positions"),
        ([0, 1, 1], "1 positions more than once"),
        ([0, 1, 3], "outside the dataset"),
        ([0, 1, -1], "outside the dataset"),
        ([0.0, 1.0, 2.0], "returned"),
        ([[0, 1, 2]], "returned"),
        ("abc", "returned"),
    ],
    ids=str,
)
def test_anything_but_an_order_of_all_samples_is_refused(returned, fault):
    with pytest.raises(BadInput, match=fault):
        EpochOrder(lambda _: returned, 3).digest()


def train(order, loaders=0, **sizes):
    """Train a small model; return what it saw in each step, and the weights."""
    run = elastane.join()
    model = nn.Linear(4, 1)
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), clip_grad_norm=float("inf"))
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(LENGTH, 4, generator=generator)
    dataset = TensorDataset(torch.arange(LENGTH), inputs, inputs.sum(1, keepdim=True))
    steps = []
    for step in run.steps(dataset, until="2 epochs", order=order, loaders=loaders, **sizes):
        for numbers, batch, targets in step:
            rows = step.count(lambda parts: len(parts[0]))
            loss = ((model(batch) - targets) ** 2).sum() / rows
            step.gathered.add(loss=loss, **{"first/last": numbers[0]})
            step.backward(loss, summed=True)
        steps.append((step.loss, rows, step.gathered["loss"], step.gathered["first/last"], step.norm))
    return steps, model.weight.detach().clone()


def reverse(epoch):
    positions = list(range(LENGTH))
    return positions if epoch else positions[::-1]


def test_a_step_has_its_samples_in_order_and_knows_its_sums():
    steps, _ = train(reverse, global_batch=8, microbatch=4)
    assert [rows for _, rows, *_ in steps] == [8, 8, 6, 8, 8, 6]
    assert [firsts for *_, firsts, _ in steps] == [(21, 17), (13, 9), (5, 1), (0, 4), (8, 12), (16, 20)]
    for loss, _, losses, _, norm in steps:
        assert loss == pytest.approx(sum(losses), abs=1e-15)
        assert len(losses) == 2
        assert norm > 0


def test_loaders_and_a_generator_that_moves_on_give_the_same_order():
    def count_up():
        generator = torch.Generator().manual_seed(7)
        drawn = []

        def order(epoch):
            while len(drawn) <= epoch:
                drawn.append(torch.randperm(LENGTH, generator=generator))
            return drawn[epoch]

        return order

    alone, loaded = (train(count_up(), loaders=n, global_batch=8, microbatch=2) for n in (0, 2))
    assert alone[0] == loaded[0]
    assert torch.equal(alone[1], loaded[1])


def test_an_order_is_for_positions_only():
    run = elastane.join()
    model = nn.Linear(2, 1)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(BadInput, match="order= with a stream"):
        next(run.steps(lambda _shard, _shards: iter(()), global_batch=2, microbatch=1, until=1, order=list))
    run = elastane.join()
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(BadInput, match="invalid order"):
        next(run.steps([0.0] * 4, global_batch=2, microbatch=1, until=1, order=[3, 2, 1, 0]))
