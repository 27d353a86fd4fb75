"""One fixed tree: for any division of the partial sums the whole sum is the same expression."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.run.protocol.tree import (
    cover,
    expand_spans,
    find_parent,
    find_sibling,
    find_spans,
    fold,
    fold_node,
    merge_siblings,
    plan_merges,
)

sizes = st.integers(1, 40)


def sum_canonically(size):
    """Return the nested sum over ``range(size)`` by the definition: halves of the next power of two."""

    def add(start, width):
        if width == 1:
            return start
        half = width // 2
        if start + half >= size:
            return add(start, half)
        return (add(start, half), add(start + half, half))

    width = 1
    while width < size:
        width *= 2
    return add(0, width)


def sum_node(node):
    """Return the sum of a node as a worker computes it, with a binary counter over its virtual ranks."""
    start, stop = node
    width = 1
    while width < stop - start:
        width *= 2

    def add(first, width):
        if width == 1:
            return first
        half = width // 2
        left = add(first, half)
        return (left, add(first + half, half)) if first + half < stop else left

    return add(start, width)


@st.composite
def draw_splits(draw):
    """Draw a size, and the worker of each virtual rank."""
    size = draw(sizes)
    return size, draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))


@given(sizes, st.data())
def test_a_cover_tiles_exactly_its_virtual_ranks(size, data):
    ranks = data.draw(st.sets(st.integers(0, size - 1)))
    nodes = cover(ranks, size)
    assert [rank for start, stop in nodes for rank in range(start, stop)] == sorted(ranks)
    for node in nodes:
        parent = find_parent(node, size)
        assert node == parent == (0, size) or not set(range(*parent)) <= ranks


@given(draw_splits())
def test_any_split_over_workers_gives_the_canonical_sum(split):
    size, workers = split
    parts = [node for w in set(workers) for node in cover((r for r in range(size) if workers[r] == w), size)]
    values = [sum_node(node) for node in parts]
    last = 0
    for merge in plan_merges(parts, size):
        values[merge.target] = (values[merge.target], values[merge.source])
        last = merge.target
    assert values[last] == sum_canonically(size)


@given(draw_splits(), st.lists(st.integers(0, 2), min_size=5, max_size=5))
def test_parts_merged_on_nodes_first_give_the_canonical_sum(split, node_of_worker):
    size, workers = split
    left = {}
    for place in set(node_of_worker):
        mates = [w for w in set(workers) if node_of_worker[w] == place]
        parts = [node for w in mates for node in cover((r for r in range(size) if workers[r] == w), size)]
        values = [sum_node(node) for node in parts]
        plan = merge_siblings(parts, size)
        for merge in plan.merges:
            values[merge.target] = (values[merge.target], values[merge.source])
        left |= {node: values[number] for (node,), number in plan.left}
        ranks = {rank for rank in range(size) if workers[rank] in mates}
        assert tuple(node for (node,), _ in plan.left) == cover(ranks, size)
    values = list(left.values())
    last = 0
    for merge in plan_merges(list(left), size):
        values[merge.target] = (values[merge.target], values[merge.source])
        last = merge.target
    assert values[last] == sum_canonically(size)


@given(draw_splits(), st.data())
def test_parts_that_do_not_tile_are_refused(split, data):
    size, workers = split
    parts = [node for w in set(workers) for node in cover((r for r in range(size) if workers[r] == w), size)]
    missing = data.draw(st.integers(0, len(parts) - 1))
    with pytest.raises(ValueError, match="not nodes that tile"):
        plan_merges(parts[:missing] + parts[missing + 1 :], size)


@given(sizes, st.data())
def test_siblings_together_are_their_parent(size, data):
    rank = data.draw(st.integers(0, size - 1))
    node = (rank, rank + 1)
    while (other := find_sibling(node, size)) is not None:
        assert find_sibling(other, size) == node
        parent = find_parent(node, size)
        assert parent == (min(node[0], other[0]), max(node[1], other[1]))
        node = parent
    assert node == (0, size)


@given(st.sets(st.integers(0, 60)))
def test_spans_hold_exactly_the_virtual_ranks_and_are_the_fewest(ranks):
    found = find_spans(ranks)
    assert expand_spans(found) == ranks
    assert sum(stop - start for start, stop in found) == len(ranks)
    assert all(a[1] < b[0] for a, b in pairwise(found))


@given(draw_splits())
def test_a_fast_sum_adds_every_part_once(split):
    size, workers = split
    parts = [node for w in set(workers) for node in cover((r for r in range(size) if workers[r] == w), size)]
    plan = fold(parts)
    first = min(range(len(parts)), key=lambda i: parts[i])
    assert {merge.target for merge in plan} <= {first}
    assert sorted(merge.source for merge in plan) == [i for i in range(len(parts)) if i != first]


@given(draw_splits())
def test_a_fast_sum_of_a_node_leaves_one_part_with_all_its_ranks(split):
    size, workers = split
    parts = [find_spans(r for r in range(size) if workers[r] == w) for w in set(workers)]
    plan = fold_node(parts)
    assert plan.left == ((((0, size),), min(range(len(parts)), key=lambda i: parts[i])),)
    assert len(plan.merges) == len(parts) - 1
