"""The outcome of a round does not depend on the division of work or the order of votes."""

import itertools
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.run.protocol.commit import compute_outcome, sum_exactly
from elastane.run.protocol.messages import Leaf, Vote
from elastane.run.protocol.tree import expand_spans

numbers = st.floats(-1e6, 1e6)


@st.composite
def rounds(draw):
    size = draw(st.integers(1, 12))
    leaves = [
        Leaf(
            rank,
            0,
            loss=draw(numbers),
            weight=draw(st.sampled_from((0.0, 1.0, 3.5))),
            samples=draw(st.integers(0, 9)),
            checksum=draw(st.integers(0, 2**64 - 1)),
            untouched=tuple(sorted(draw(st.sets(st.integers(0, 3))))),
            sums=draw(st.dictionaries(st.sampled_from(("a", "b")), numbers)),
        )
        for rank in range(size)
    ]
    squares = st.lists(st.floats(0, 1e9), max_size=2).map(tuple)
    norms = draw(st.dictionaries(st.integers(0, 6), squares))
    return leaves, norms


def divide_work(leaves, norms, workers, draw):
    """Draw the worker of each leaf and norm, and the order of the votes."""
    workers_of_leaves = {leaf.virtual_rank: draw(st.sampled_from(workers)) for leaf in leaves}
    computed = [msgspec.structs.replace(leaf, worker=workers_of_leaves[leaf.virtual_rank]) for leaf in leaves]
    computed = draw(st.permutations(computed))
    measured = {block: draw(st.sampled_from(workers)) for block in norms}
    votes = {
        worker: Vote(
            generation=1,
            round=1,
            leaves=(),
            norms={block: norm for block, norm in norms.items() if measured[block] == worker},
        )
        for worker in draw(st.permutations(workers))
    }
    return {leaf.virtual_rank: leaf for leaf in computed}, votes


@given(rounds(), st.data())
def test_the_outcome_does_not_depend_on_the_division_of_work_or_the_order_of_votes(round_, data):
    leaves, norms = round_
    one = compute_outcome(3, 2, *divide_work(leaves, norms, [0], data.draw))
    other = compute_outcome(3, 2, *divide_work(leaves, norms, [4, 7, 9], data.draw))
    assert msgspec.structs.replace(one, shares={}) == msgspec.structs.replace(other, shares={})
    for outcome in (one, other):
        assigned = [rank for some in outcome.shares.values() for rank in expand_spans(some)]
        assert sorted(assigned) == [leaf.virtual_rank for leaf in leaves]


@given(rounds(), st.data())
def test_a_loss_is_the_weighted_mean_or_zero_without_weight(round_, data):
    leaves, norms = round_
    outcome = compute_outcome(1, 1, *divide_work(leaves, norms, [0, 1], data.draw))
    weight = sum(leaf.weight for leaf in leaves)
    losses = [leaf.loss for leaf in leaves if leaf.weight]
    assert outcome.weight == weight
    if weight:
        assert min(losses) - 1e-6 <= outcome.loss <= max(losses) + 1e-6
    else:
        assert outcome.loss == 0.0


@given(rounds(), st.data())
def test_untouched_parameters_have_no_gradient_from_any_virtual_rank(round_, data):
    leaves, norms = round_
    outcome = compute_outcome(1, 1, *divide_work(leaves, norms, [0, 1], data.draw))
    trained = [set(leaf.untouched) for leaf in leaves if leaf.weight]
    assert set(outcome.untouched) == (set.intersection(*trained) if trained else set())


@given(st.lists(st.sampled_from((0, 0, 5, 6)), min_size=1, max_size=5))
def test_a_generation_begins_only_if_all_members_are_ready_for_it(ready):
    votes = {i: Vote(generation=1, round=1, leaves=(), ready=number) for i, number in enumerate(ready)}
    outcome = compute_outcome(1, 1, {0: Leaf(0, 0)}, votes)
    assert outcome.next_generation == (ready[0] if len(set(ready)) == 1 else 0)


@given(st.lists(st.booleans(), min_size=1, max_size=5))
def test_one_vote_to_stop_stops_all(stops):
    votes = {i: Vote(generation=1, round=1, leaves=(), stop=stop) for i, stop in enumerate(stops)}
    assert compute_outcome(1, 1, {0: Leaf(0, 0)}, votes).stop == any(stops)


@pytest.mark.parametrize(
    "values", [[1e308, 1e308], [math.inf, -math.inf], [math.nan, 1.0], [math.inf, math.nan]]
)
def test_sums_that_are_not_finite_are_not_a_number_in_every_order(values):
    for order in itertools.permutations(values):
        assert math.isnan(sum_exactly(order))


def test_a_sum_is_rounded_once_in_every_order():
    for order in itertools.permutations([1e16, 1.0, -1e16, 0.5]):
        assert sum_exactly(order) == 1.5
