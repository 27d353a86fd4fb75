"""The sum of squares is exact, so its bits do not depend on memory, threads and the division."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastane.run.worker.state.square_sums import PIECE, Rows, sum_squares


def add_up(*tensors: torch.Tensor, size: int = 1) -> Fraction:
    blocks = [[Rows(tensor, size)] for tensor in tensors]
    return sum((Fraction(part) for parts in sum_squares(blocks) for part in parts), Fraction())


def add_exactly(elements: torch.Tensor) -> Fraction:
    return sum((Fraction(square) for square in elements.double().square().tolist()), Fraction())


def draw(length: int, dtype: torch.dtype) -> torch.Tensor:
    """Draw elements of many magnitudes."""
    generator = torch.Generator().manual_seed(length)
    exponents = torch.randint(-12, 4, (length,), generator=generator)
    return torch.ldexp(torch.randn(length, generator=generator), exponents).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [0, 1, 1023, 2 * PIECE + 7])
def test_the_sum_is_exact(length, dtype):
    elements = draw(length, dtype)
    assert add_up(elements) == add_exactly(elements)


@given(borders=st.lists(st.integers(0, 3 * PIECE), max_size=5))
@settings(max_examples=10, deadline=None)
def test_no_division_changes_it(borders):
    elements = draw(3 * PIECE, torch.float32)
    parts = torch.tensor_split(elements, sorted(borders))
    assert add_up(*parts) == add_up(elements)


@given(borders=st.lists(st.integers(0, 50), max_size=5), size=st.sampled_from([8, 9, 80, 257, 768, 1024]))
@settings(max_examples=20, deadline=None)
def test_no_division_between_rows_changes_it(borders, size):
    elements = draw(50 * size, torch.float32)
    parts = torch.tensor_split(elements, [border * size for border in sorted(borders)])
    assert add_up(*parts, size=size) == add_up(elements, size=size)
    assert float(add_up(elements, size=size)) == pytest.approx(float(add_exactly(elements)), rel=1e-6)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40))
@example([2.0**-149, 2.0**127])
@example([math.nextafter(1.0, 2), 1e-30, -1e30])
@settings(deadline=None)
def test_every_magnitude_counts(numbers):
    elements = torch.tensor(numbers, dtype=torch.float32)
    assert add_up(elements) == add_exactly(elements)


def test_the_sum_does_not_depend_on_place_and_threads():
    elements = draw(100 * PIECE + 5, torch.float32)
    expected = sum_squares([[Rows(elements, 1)]])
    moved = torch.empty(len(elements) + 3)[3:].copy_(elements)
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            assert sum_squares([[Rows(moved, 1)]]) == expected
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("place", [0, PIECE + 1])
def test_an_element_that_is_not_finite_shows_in_the_sum(bad, place):
    elements = torch.ones(PIECE + 2)
    elements[place] = bad
    (sum_,), one = sum_squares([[Rows(elements, 1)], [Rows(torch.ones(1), 1)]])
    assert sum_ == bad or math.isnan(sum_)
    assert one == (1.0,)


def test_a_sum_without_a_finite_double_is_infinite():
    huge = torch.full((3,), 1.2e154, dtype=torch.float64)
    assert sum_squares([[Rows(huge, 1)], [Rows(2 * huge, 1)]]) == [(math.inf,), (math.inf,)]
