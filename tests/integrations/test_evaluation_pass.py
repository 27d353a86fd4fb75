"""Nested results of a model become tensors by name, and are nested again."""

import pytest
import torch

from tests.lazy_modules import LazyModule

nested = LazyModule("elastane.integrations.transformers.evaluation_pass")

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
    flat = nested.flatten_tensors("logits", value) | nested.flatten_tensors("logits2", (OTHER,))
    assert all(isinstance(tensor, torch.Tensor) for tensor in flat.values())
    assert nested.nest_tensors("logits", flat) == value


@pytest.mark.parametrize(
    "value", [3.0, "text", (ONE, None), [], {}, {1: ONE}, {"a/b": ONE}, (ONE, object()), torch.Size([1])]
)
def test_anything_else_is_refused(value):
    with pytest.raises(TypeError):
        nested.flatten_tensors("logits", value)
