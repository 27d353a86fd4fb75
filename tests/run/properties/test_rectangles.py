"""A few rectangles tile any range of any dense tensor, each without gaps."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastane.run.checkpoints.rectangles import (
    Box,
    compute_dense_stride,
    cut_rectangles,
    find_tiling_problem,
    sort_dims,
)


@st.composite
def draw_ranges(draw):
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=5)))
    stride = compute_dense_stride(shape, draw(st.permutations(range(len(shape)))))
    elements = math.prod(shape)
    start = draw(st.integers(0, elements))
    return shape, stride, start, draw(st.integers(start, elements))


def compute_positions(shape, stride):
    """Return the position in memory of every element."""
    grid = np.zeros(shape, dtype=np.int64)
    for dim, (size, step) in enumerate(zip(shape, stride, strict=True)):
        along = [1] * len(shape)
        along[dim] = size
        grid += (np.arange(size) * step).reshape(along)
    return grid


@given(draw_ranges())
def test_rectangles_tile_the_range_in_memory_order(drawn):
    shape, stride, start, stop = drawn
    grid = compute_positions(shape, stride)
    order = sort_dims(shape, stride)
    position = start
    for rectangle in cut_rectangles(shape, stride, start, stop):
        assert rectangle.start == position
        corner = zip(rectangle.offsets, rectangle.sizes, strict=True)
        inside = grid[tuple(slice(offset, offset + size) for offset, size in corner)]
        assert inside.shape == rectangle.sizes
        # In memory order the rectangle has exactly these elements, without gaps.
        assert inside.transpose(order).ravel().tolist() == list(range(position, rectangle.stop))
        position = rectangle.stop
    assert position == stop


@given(draw_ranges())
def test_a_range_has_at_most_two_rectangles_per_dim_less_one(drawn):
    shape, stride, start, stop = drawn
    assert len(cut_rectangles(shape, stride, start, stop)) <= max(2 * len(shape) - 1, 1)


@given(draw_ranges())
def test_a_whole_tensor_is_one_rectangle(drawn):
    shape, stride, _, _ = drawn
    (only,) = cut_rectangles(shape, stride, 0, math.prod(shape))
    assert (only.offsets, only.sizes) == ((0,) * len(shape), shape)


@st.composite
def draw_tilings(draw):
    """Draw boxes that tile a tensor: each cut divides one of them."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    boxes = [Box((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 5))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        dim = draw(st.integers(0, len(shape) - 1))
        size = draw(st.integers(0, box.sizes[dim]))
        first, rest, begin = [*box.sizes], [*box.sizes], [*box.offsets]
        first[dim], rest[dim], begin[dim] = size, box.sizes[dim] - size, box.offsets[dim] + size
        boxes += [Box(box.offsets, tuple(first)), Box(tuple(begin), tuple(rest))]
    return shape, boxes


@given(draw_tilings(), st.data())
def test_boxes_that_tile_a_tensor_have_no_problem_but_every_change_is_one(drawn, data):
    shape, boxes = drawn
    assert find_tiling_problem(shape, boxes) == ""
    filled = [box for box in boxes if box.elements]
    chosen = data.draw(st.sampled_from(filled))
    rest = [box for box in filled if box is not chosen]
    assert "are missing" in find_tiling_problem(shape, rest)
    assert "are stored twice" in find_tiling_problem(shape, [*filled, chosen])
    outside = Box(tuple(offset + 1 for offset in chosen.offsets), shape)
    assert "is outside" in find_tiling_problem(shape, [*rest, outside])


def test_a_tensor_without_elements_is_one_rectangle():
    (only,) = cut_rectangles((3, 0, 2), (2, 2, 1), 0, 0)
    assert only.sizes == (3, 0, 2)
