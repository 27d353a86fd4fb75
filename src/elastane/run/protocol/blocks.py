"""Blocks: fixed slices of the state. Their borders never depend on the number of workers."""

from collections.abc import Sequence

import msgspec

LARGEST_BLOCK = 1 << 20
SMALLEST_BLOCK = 1 << 14
ALIGNMENT = 1 << 10


class Block(msgspec.Struct, frozen=True):
    """Elements ``[start, stop)`` of one section of the flat state.

    Args:
        section: the number of the flat buffer: one per data type and parameter group.
        start: the first element.
        stop: one past the last element.
    """

    section: int
    start: int
    stop: int

    @property
    def elements(self) -> int:
        return self.stop - self.start


def cut_blocks(sections: Sequence[int]) -> tuple[Block, ...]:
    """Cut sections of the given numbers of elements into blocks of about a sixteenth of the state.

    A block has at least 2**14 and at most 2**20 elements. 4 MiB of fp32 are large enough that the messages
    for a block cost far less than its sum, and small enough to travel during the backward pass. Borders are
    multiples of 2**10 elements, so vector kernels get the same alignment in every division.
    """
    total = sum(sections)
    size = min(max(-(-total // 16), SMALLEST_BLOCK), LARGEST_BLOCK)
    size = -(-size // ALIGNMENT) * ALIGNMENT
    return tuple(
        Block(section, start, min(start + size, elements))
        for section, elements in enumerate(sections)
        for start in range(0, elements, size)
    )
