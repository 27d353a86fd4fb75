"""``drop_last=True`` leaves out the samples of an epoch that do not fill a step, other ones in each epoch."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastane
from elastane.common.errors import BadInput

LENGTH, BATCH = 13, 4


def train(dataset, **options):
    """Train a model with batch normalization; return the samples of each step."""
    run = elastane.join()
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    steps = []
    for step in run.steps(dataset, global_batch=BATCH, microbatch=2, **options):
        seen = []
        for numbers, inputs in step:
            step.backward(model(inputs).mean())
            seen += numbers.tolist()
        steps.append((step.epoch, step.ended_epoch, seen))
    return steps


@pytest.fixture
def dataset():
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.arange(LENGTH), torch.randn(LENGTH, 4, generator=generator))


def test_each_step_is_full_and_epochs_leave_out_different_samples(dataset):
    steps = train(dataset, until="5 epochs", drop_last=True)
    assert [len(seen[-BATCH:]) for _, _, seen in steps] == [BATCH] * 15
    assert [(epoch, ended) for epoch, ended, _ in steps] == [(n // 3, n % 3 == 2) for n in range(15)]
    left_out = set()
    for epoch in range(5):
        seen = [number for at, _, numbers in steps for number in numbers[-BATCH:] if at == epoch]
        assert len(set(seen)) == LENGTH - 1
        left_out |= set(range(LENGTH)) - set(seen)
    assert len(left_out) > 1


def test_without_it_batch_normalization_fails_on_the_lone_last_sample(dataset):
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        train(dataset, until="1 epoch")


def test_an_order_leaves_out_its_own_last_samples(dataset):
    order = [*range(1, LENGTH), 0]
    steps = train(dataset, until="1 epoch", drop_last=True, order=lambda _epoch: order)
    assert [number for *_, seen in steps for number in seen[-BATCH:]] == order[:12]


def test_nothing_is_left_out_of_whole_steps(dataset):
    whole = torch.utils.data.Subset(dataset, range(12))
    assert train(whole, until="2 epochs", drop_last=True) == train_again(whole)


def train_again(dataset):
    return train(dataset, until="2 epochs")


def test_a_dataset_without_a_whole_step_is_refused(dataset):
    with pytest.raises(BadInput, match="the 3 samples do not fill one step"):
        train(torch.utils.data.Subset(dataset, range(3)), until="1 epoch", drop_last=True)


def test_a_stream_is_refused():
    with pytest.raises(BadInput, match="drop_last=True with a stream"):
        train(lambda _shard, _shards: iter([]), until="1 epoch", drop_last=True)
