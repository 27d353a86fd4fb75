"""Every sample comes once per epoch, in any order of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.run.protocol.sampling import (
    count_steps_per_epoch,
    derive_random_key,
    find_sample_index,
    find_step_samples,
    hash_sample,
    mix,
)

seeds = st.integers(-(2**70), 2**70)


@given(length=st.integers(1, 600), seed=seeds, epoch=st.integers(0, 10**6))
def test_an_epoch_is_a_permutation_of_the_dataset(length, seed, epoch):
    assert sorted(find_sample_index(i, length, seed, epoch) for i in range(length)) == list(range(length))


@given(length=st.integers(1, 2**40), seed=seeds, epoch=st.integers(0, 99), data=st.data())
def test_an_index_is_in_the_dataset_at_any_length(length, seed, epoch, data):
    position = data.draw(st.integers(0, length - 1))
    assert 0 <= find_sample_index(position, length, seed, epoch) < length


@given(length=st.integers(1, 100), beyond=st.integers(0, 5))
def test_a_position_outside_the_epoch_is_refused(length, beyond):
    with pytest.raises(IndexError, match="outside an epoch"):
        find_sample_index(length + beyond, length, 0, 0)
    with pytest.raises(IndexError, match="outside an epoch"):
        find_sample_index(-1 - beyond, length, 0, 0)


def test_epochs_and_seeds_have_different_orders():
    def order(seed, epoch):
        return tuple(find_sample_index(i, 100, seed, epoch) for i in range(100))

    orders = {order(seed, epoch) for seed in range(5) for epoch in range(20)}
    assert len(orders) == 100


@given(length=st.integers(1, 500), batch=st.integers(1, 600), epochs=st.integers(1, 3))
def test_steps_tile_each_epoch_and_never_span_two(length, batch, epochs):
    per_epoch = count_steps_per_epoch(length, batch)
    for epoch in range(epochs):
        steps = [find_step_samples(epoch * per_epoch + i + 1, length, batch) for i in range(per_epoch)]
        assert {step.epoch for step in steps} == {epoch}
        assert [p for step in steps for p in range(step.start, step.stop)] == list(range(length))
        assert all(0 < step.count <= batch for step in steps)
        assert all(step.count == batch for step in steps[:-1])


@given(
    length=st.integers(1, 300), microbatch=st.integers(1, 9), size=st.integers(1, 20), step=st.integers(1, 99)
)
def test_virtual_ranks_tile_a_step(length, microbatch, size, step):
    samples = find_step_samples(step, length, size * microbatch)
    positions = [p for rank in range(size) for p in samples.list_positions(rank, microbatch)]
    assert positions == list(range(samples.start, samples.stop))


@given(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=50))
def test_mixing_keeps_different_values_different(values):
    assert len({mix(value) for value in values}) == len(values)
    assert len({hash_sample(value) for value in values}) == len(values)


def test_keys_of_nearby_seeds_steps_and_virtual_ranks_differ():
    keys = [
        derive_random_key(seed, step, rank) for seed in range(8) for step in range(40) for rank in range(40)
    ]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**63 for key in keys)
