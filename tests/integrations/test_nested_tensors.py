"""Nested results of a model become tensors by name, and are nested again."""

import pytest
import torch

from elastane.integrations.transformers.nested_tensors import flatten_tensors, nest_tensors

ONE, OTHER = torch.ones(1), torch.zeros(2)


@pytest.mark.parametrize(
    "value",
    [
        None,
        ONE,
        (ONE,),
        [ONE, OTHER],
        {"start": ONE, "end of answer": (OTHER, [ONE, (OTHER,)]), "": ONE},
        tuple(torch.tensor(number) for number in range(12)),
        ({"k0": ONE}, {"t0": OTHER}),
    ],
)
def test_nested_tensors_come_back(value):
    flat = flatten_tensors("logits", value) | flatten_tensors("logits2", (OTHER,))
    assert all(isinstance(tensor, torch.Tensor) for tensor in flat.values())
    assert nest_tensors("logits", flat) == value


@pytest.mark.parametrize(
    "value", [3.0, "text", (ONE, None), [], {}, {1: ONE}, {"a/b": ONE}, (ONE, object()), torch.Size([1])]
)
def test_anything_else_is_refused(value):
    with pytest.raises(TypeError):
        flatten_tensors("logits", value)
