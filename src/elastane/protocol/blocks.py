"""Blocks: fixed slices of the state. Their borders never depend on the number of workers."""

from collections.abc import Sequence

import msgspec

LARGEST = 1 << 20
SMALLEST = 1 << 14
ALIGNMENT = 1 << 10


class Block(msgspec.Struct, frozen=True):
    """Elements ``[start, stop)`` of one section of the flat state.

    Args:
        section: number of the flat buffer: one per data type and parameter group.
        start: first element.
        stop: one past the last.
    """

    section: int
    start: int
    stop: int

    @property
    def elements(self) -> int:
        return self.stop - self.start


def cut_blocks(sections: Sequence[int]) -> tuple[Block, ...]:
    """Cut sections of the given numbers of elements into blocks of about a sixteenth of the state.

    A block has at most 2**20 elements (4 MiB of fp32: large enough that handing it over costs far less than
    summing it, small enough to travel under the backward pass) and at least 2**14, and borders are multiples
    of 2**10 elements, so vector kernels meet the same alignment in every cut.
    """
    total = sum(sections)
    size = min(max(-(-total // 16), SMALLEST), LARGEST)
    size = -(-size // ALIGNMENT) * ALIGNMENT
    return tuple(
        Block(section, start, min(start + size, elements))
        for section, elements in enumerate(sections)
        for start in range(0, elements, size)
    )
