"""Rectangles of tensors, the pieces of a checkpoint: cut from memory, and put together again."""

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec


class Box(msgspec.Struct, frozen=True):
    """A rectangle of a tensor.

    Args:
        offsets: the corner, per dim.
        sizes: the sizes, per dim.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    def move(self, corner: Sequence[int]) -> "Box":
        """Return this box of a box with this corner, as a box of the whole tensor."""
        return Box(tuple(map(sum, zip(self.offsets, corner, strict=True))), self.sizes)

    def intersect(self, other: "Box") -> "Box | None":
        """Return the elements of both boxes; None: there are none."""
        offsets = tuple(map(max, self.offsets, other.offsets))
        ends = map(min, self.ends, other.ends)
        sizes = tuple(end - offset for end, offset in zip(ends, offsets, strict=True))
        return Box(offsets, sizes) if all(size > 0 for size in sizes) else None

    @property
    def ends(self) -> tuple[int, ...]:
        """One past the last element, per dim."""
        return tuple(map(sum, zip(self.offsets, self.sizes, strict=True)))

    def slice(self, corner: Sequence[int]) -> tuple[slice, ...]:
        """Return the slices of this box in an array that begins at a corner."""
        return tuple(
            slice(offset - first, offset - first + size)
            for offset, first, size in zip(self.offsets, corner, self.sizes, strict=True)
        )


class Rectangle(Box, frozen=True):
    """Elements ``[start, stop)`` of a tensor's memory that form a rectangle.

    Args:
        start: the first element, in memory order.
        stop: one past the last element.
    """

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


# -- the check that boxes hold every element of a tensor exactly once -------------------------------------


def find_tiling_problem(shape: Sequence[int], boxes: Iterable[Box]) -> str:
    """Describe why boxes do not hold every element of a tensor exactly once; empty if they do."""
    boxes, elements = [*boxes], math.prod(shape)
    for box in boxes:
        if len(box.offsets) != len(shape) or len(box.sizes) != len(shape):
            return f"a part has {len(box.sizes)} dims, and the tensor {len(shape)}"
        if min((*box.offsets, *box.sizes), default=0) < 0 or any(map(int.__gt__, box.ends, shape)):
            return f"a part is outside: {list(box.sizes)} at {list(box.offsets)} of {list(shape)}"
    if not elements:
        return "" if boxes else "is not stored"
    twice = _find_overlap([box for box in boxes if box.elements])
    if twice is not None:
        return f"{list(twice.sizes)} elements at {list(twice.offsets)} are stored twice"
    missing = elements - sum(box.elements for box in boxes)
    return f"{missing} of {elements} elements are missing" if missing else ""


def _find_overlap(boxes: list[Box]) -> Box | None:
    """Return elements that two boxes have; None: all are disjoint."""
    if not boxes or not boxes[0].sizes:
        return boxes[0] if len(boxes) > 1 else None
    # Sweep along the dim that divides the boxes most, so that few of them are open at the same time.
    dim = max(range(len(boxes[0].sizes)), key=lambda dim: len({box.offsets[dim] for box in boxes}))
    is_open: list[Box] = []
    for box in sorted(boxes, key=lambda box: box.offsets[dim]):
        is_open = [other for other in is_open if other.ends[dim] > box.offsets[dim]]
        for other in is_open:
            if (both := box.intersect(other)) is not None:
                return both
        is_open.append(box)
    return None
