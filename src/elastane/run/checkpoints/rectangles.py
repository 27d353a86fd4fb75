"""The division of a range of a tensor's memory into rectangles, which other readers of checkpoints need."""

import math
from collections.abc import Iterator, Sequence

import msgspec


class Rectangle(msgspec.Struct, frozen=True):
    """Elements ``[start, stop)`` of a tensor's memory that form a rectangle.

    Args:
        offsets: the corner of the rectangle, per dim.
        sizes: the sizes, per dim.
        start: the first element, in memory order.
        stop: one past the last element.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int
    stop: int


def sort_dims(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Return the dims of a dense tensor from the slowest to the fastest in memory."""
    return tuple(sorted(range(len(shape)), key=lambda dim: (stride[dim], shape[dim]), reverse=True))


def compute_dense_stride(sizes: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor of these sizes with its dims in this order."""
    stride, step = [0] * len(sizes), 1
    for dim in reversed(order):
        stride[dim] = step
        step *= max(sizes[dim], 1)
    return tuple(stride)


def cut_rectangles(
    shape: Sequence[int], stride: Sequence[int], start: int, stop: int
) -> tuple[Rectangle, ...]:
    """Cut elements ``[start, stop)`` of a dense tensor's memory into rectangles, in memory order.

    The result has at most ``2 * dims - 1`` rectangles: the rest of a row, of a plane and so on, then complete
    ones, then the beginnings of the last ones. Each is contiguous in memory. A tensor without elements gives
    one rectangle without elements.

    Args:
        shape: the shape of the whole tensor.
        stride: the stride of the whole tensor; dense, perhaps permuted.
        start: the first element, in memory order.
        stop: one past the last element, at most the product of the shape.

    Raises:
        ValueError: the tensor has no such elements.
    """
    elements = math.prod(shape)
    if not 0 <= start <= stop <= elements:
        raise ValueError(f"elements {start} to {stop} of a tensor of {elements}")
    if elements == 0:
        return (Rectangle((0,) * len(shape), tuple(shape), 0, 0),)
    if not shape:
        return (Rectangle((), (), start, stop),) * (stop - start)
    order = sort_dims(shape, stride)
    lengths = [shape[dim] for dim in order]

    def make(first: Sequence[int], sizes: Sequence[int], begin: int) -> Rectangle:
        offsets, extents = [0] * len(order), [0] * len(order)
        for dim, offset, size in zip(order, first, sizes, strict=True):
            offsets[dim], extents[dim] = offset, size
        return Rectangle(tuple(offsets), tuple(extents), begin, begin + math.prod(sizes))

    return tuple(make(*piece) for piece in _cut_pieces(lengths, start, stop))


def _cut_pieces(
    lengths: Sequence[int], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Yield corner, sizes and first element of each rectangle in a contiguous tensor of these lengths."""
    inner = [math.prod(lengths[dim + 1 :]) for dim in range(len(lengths))]
    position = start
    while position < stop:
        # The slowest dim along which complete slices fit; all faster dims start at 0 there.
        dim = next(d for d, size in enumerate(inner) if position % size == 0 and stop - position >= size)
        corner = tuple(position // size % length for size, length in zip(inner, lengths, strict=True))
        count = min((stop - position) // inner[dim], lengths[dim] - corner[dim])
        yield corner, (1,) * dim + (count,) + tuple(lengths[dim + 1 :]), position
        position += count * inner[dim]
