"""The squared norm of a block: its precision, and that its bits do not depend on memory and threads."""

import math

import pytest
import torch

from elastane.run.worker.state_meter import ROW, compute_squared_norms

LENGTHS = (0, 1, ROW - 1, ROW, ROW + 1, 5 * ROW + 7, 300 * ROW)
PRECISION = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 1e-6, torch.float16: 1e-6}


def compute_squared_norm(elements: torch.Tensor) -> float:
    return compute_squared_norms([elements])[0]


def draw(length: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(length)).to(dtype)


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_squared_norm_is_the_sum_of_the_squares(length, dtype):
    elements = draw(length, dtype)
    expected = elements.double().square().sum().item()
    assert compute_squared_norm(elements) == pytest.approx(expected, rel=PRECISION[dtype])


def test_the_squared_norm_does_not_depend_on_place_and_threads():
    length = 4000 * ROW + 5
    elements = draw(length, torch.float32)
    expected = compute_squared_norm(elements)
    moved = torch.empty(length + 3)[3:].copy_(elements)
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            assert compute_squared_norm(moved) == expected
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("place", [0, ROW + 1])
def test_an_element_that_is_not_finite_shows_in_the_norm(bad, place):
    elements = torch.ones(ROW + 2)
    elements[place] = bad
    norm = compute_squared_norm(elements)
    assert norm == bad or math.isnan(norm)
