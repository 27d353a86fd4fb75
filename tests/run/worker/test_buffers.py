"""Buffers of every data type, with every value, take the mean of the changes of a step's microbatches."""

import math
import warnings

import pytest
import torch
from torch import nn

from elastane.common.errors import BadInput

from .lessons import CLASSES, FEATURES, Lesson, train_elastic

RANKS = 4
"""The microbatches of a step of these lessons."""

INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
FLOATS = ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64", "complex64")


class WithBuffer(nn.Module):
    """A layer with one buffer, which a function of the forward pass changes.

    Args:
        change: takes the buffer and the inputs, and returns the new values; None: they never change.
    """

    def __init__(self, buffer, change=None):
        super().__init__()
        self.layer, self.change = nn.Linear(FEATURES, CLASSES), change
        self.register_buffer("kept", buffer)

    def forward(self, inputs):
        if self.change is not None:
            self.kept = self.change(self.kept, inputs)
        return self.layer(inputs)


def train_with(buffer, change=None, **wishes):
    return train_elastic(Lesson(lambda: WithBuffer(buffer.clone(), change), steps=3), **wishes).model.kept


def read_bytes(tensor):
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("values", [-math.inf, math.inf, math.nan, -0.0, 0.0, 3.0e38])
def test_a_constant_buffer_keeps_its_bits(values, copies):
    mask = torch.full((5, 5), values).triu(1)
    assert read_bytes(train_with(mask, copies=copies)) == read_bytes(mask)


@pytest.mark.parametrize("name", INTEGERS + FLOATS)
def test_a_counter_of_any_type_counts_steps(name):
    dtype = getattr(torch, name)
    zero = torch.zeros(3, dtype=dtype)
    wide = torch.complex64 if dtype.is_complex else torch.float64
    assert train_with(zero, lambda count, _: (count.to(wide) + 1).to(dtype)).to(wide).tolist() == [3] * 3


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64"])
def test_the_largest_values_of_a_type_are_kept(name):
    dtype = getattr(torch, name)
    largest = torch.iinfo(dtype).max
    constant = torch.tensor([largest, 0, largest - 1], dtype=dtype)
    assert train_with(constant).tolist() == [largest, 0, largest - 1]
    lower = torch.tensor([largest - 3, 0, largest - 4], dtype=dtype)
    assert train_with(constant, lambda _, __: lower.clone()).tolist() == lower.tolist()


def test_an_infinite_value_is_replaced_by_the_mean_of_the_values_that_follow_it():
    """An observer of ranges begins with infinities; after one step it has means of finite numbers."""

    def observe(ranges, inputs):
        found = torch.stack([inputs.min(), inputs.max()])
        return torch.where(ranges.isfinite(), ranges, found)

    seen = []

    def note(ranges, inputs):
        seen.append(observe(torch.full((2,), math.inf), inputs))
        return observe(ranges, inputs)

    found = train_with(torch.tensor([math.inf, -math.inf]), note)
    # The rehearsal computes the first microbatch twice more, and the second one once.
    expected = torch.stack(seen[3 : 3 + RANKS]).mean(0)
    torch.testing.assert_close(found, expected)


def test_one_infinite_value_of_a_step_makes_the_mean_infinite():
    def change(values, inputs):
        return torch.where(inputs[0, 0] > 0, torch.tensor(math.inf), values)

    assert train_with(torch.zeros(2), change).tolist() == [math.inf, math.inf]


def test_a_mean_of_zero_replaces_an_infinite_value():
    assert train_with(torch.full((2,), math.inf), lambda values, _: values.clone().zero_()).tolist() == [0, 0]


def test_a_buffer_with_shared_memory_and_an_empty_one_are_kept():
    assert train_with(torch.ones(1).expand(3)).tolist() == [1.0, 1.0, 1.0]
    assert train_with(torch.zeros(0)).tolist() == []


@pytest.mark.parametrize("change", [lambda values, _: torch.cat([values, values]), lambda _, __: None])
def test_a_buffer_that_gets_another_shape_is_refused(change):
    with pytest.raises(BadInput, match=r"the shape of the buffer kept changed from \(2,\)"):
        train_with(torch.zeros(2), change)


def build_quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


@pytest.mark.parametrize(
    ("build", "kind"), [(lambda: torch.eye(3).to_sparse(), "sparse_coo"), (build_quantized, "quantized")]
)
def test_a_buffer_without_dense_memory_is_refused(build, kind):
    with pytest.raises(BadInput, match=f"the buffer kept is {kind}"):
        train_with(build())
