"""Sums of squares that no division of a gradient changes: among workers, processes of a worker, or blocks.

Rows of a tensor are reduced to their norms, each by itself: one core adds 5 GB/s of squares so, and 0.5 GB/s
exactly. Blocks and processes have whole rows (`ModelLayout.row_sizes`). The squares of these norms, and those
of elements that form no rows, are then added exactly: the square of a float32 has 48 bits, so it is exact in
float64. Each square is cut into digits, beginning with the largest square. Digits are integers, which are
added without rounding, in any order. The sum is rounded once, when the squares of the whole gradient are
added (`elastane.run.protocol.commit`). Squares of float64 are rounded, each by itself.
"""

import math
import struct
import threading
from collections.abc import Sequence

import msgspec
import torch

PIECE = 1 << 15
"""The elements that are added at once: they stay in the cache of a core."""
DIGIT_BITS = 46
"""Sums of the digits of a piece stay below 2**62."""
DIGITS = 2
"""Most pieces have no more."""
LARGEST = 960
"""Squares above 2**960 count as infinite."""
SMALLEST = -1074
"""The exponent of the smallest float64, of which all others are multiples."""
UNITS = 1 << -SMALLEST
"""The number of smallest float64 in 1.0."""


class Rows(msgspec.Struct, frozen=True):
    """Elements of a gradient, 1-D.

    Args:
        size: the elements of a row, which divides their number; 1: they form no rows.
    """

    elements: torch.Tensor
    size: int

    def reduce(self) -> torch.Tensor:
        """Return numbers with the same sum of squares, up to rounding that depends on each row only."""
        kind = torch.promote_types(self.elements.dtype, torch.float32)
        if self.size == 1:
            return self.elements.to(kind)
        norms: torch.Tensor = torch.linalg.vector_norm(self.elements.view(-1, self.size), dim=1, dtype=kind)
        return norms


def is_on_device(tensor: torch.Tensor) -> bool:
    """Return whether a GPU adds the squares; benchmarks replace this to count such calls on a CPU."""
    return tensor.is_cuda


@torch.no_grad()
def sum_squares(blocks: Sequence[Sequence[Rows]]) -> list[tuple[float, ...]]:
    """Return the sum of the squares of each block, as numbers of which the exact sum is this one.

    The sum of a block with an element that is not finite is one number that is not finite. On a GPU a block
    is one sum in float64, which depends on its borders.
    """
    if any(is_on_device(rows.elements) for block in blocks for rows in block):
        # A chunk of a tensor is a thread block, and a tensor's chunks are summed in their own order.
        tensors = [rows.elements for block in blocks for rows in block]
        norms = iter(torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float64)).tolist())
        return [tuple(next(norms) ** 2 for _ in block) for block in blocks]
    return [_sum_exactly(torch.cat([rows.reduce() for rows in block])) if block else () for block in blocks]


def _sum_exactly(numbers: torch.Tensor) -> tuple[float, ...]:
    if not len(numbers):
        return ()
    largest = _find_largest(numbers)
    # A power would raise for a square that is not finite.
    largest *= largest
    if math.isnan(largest):
        return (largest,)
    if largest == math.inf or math.frexp(largest)[1] >= LARGEST:
        return (math.inf,)
    return _divide(sum(_sum_digits(piece, math.frexp(largest)[1]) for piece in numbers.split(PIECE)))


def _find_largest(numbers: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(numbers, math.inf))


def _sum_digits(piece: torch.Tensor, exponent: int) -> int:
    """Return the sum of the squares in the unit of the smallest float64.

    Args:
        exponent: every square is at most 2**exponent.
    """
    squares, rounded = (buffer[: len(piece)] for buffer in _find_scratch())
    squares.copy_(piece)
    squares.mul_(squares)
    total = 0
    while True:
        for _ in range(DIGITS):
            exponent = max(exponent - DIGIT_BITS, SMALLEST)
            # A sum with this number is rounded to a multiple of 2**exponent, which its last bits count.
            ruler = math.ldexp(1.5, exponent + 52)
            torch.add(squares, ruler, out=rounded)
            count = int(rounded.view(torch.int64).sum()) - len(piece) * _read_bits(ruler)
            total += _wrap(count) << (exponent - SMALLEST)
            squares.sub_(rounded.sub_(ruler))
        if not _find_largest(squares):
            return total


def _read_bits(number: float) -> int:
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


def _wrap(number: int) -> int:
    """Return the 64-bit integer with these last bits."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _divide(total: int) -> tuple[float, ...]:
    """Return few numbers of which the exact sum is ``total`` times the smallest float64."""
    parts = []
    while total:
        part = total / UNITS
        numerator, denominator = part.as_integer_ratio()
        total -= numerator * (UNITS // denominator)
        parts.append(part)
    return tuple(parts)


_scratch = threading.local()


def _find_scratch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the memory of this thread for squares and for their digits."""
    if not hasattr(_scratch, "buffers"):
        _scratch.buffers = tuple(torch.empty(PIECE, dtype=torch.float64) for _ in range(2))
    buffers: tuple[torch.Tensor, torch.Tensor] = _scratch.buffers
    return buffers
