"""The square root of portable numerics is correctly rounded, wherever a script takes it."""

import subprocess
import sys

import pytest
import torch

PROGRAM = """
import warnings
warnings.simplefilter("error")
import numpy as np
import torch
from elastane.run.worker.state.square_root import replace_square_root

replace_square_root()
replace_square_root()
for dtype in torch.float32, torch.float64:
    x = torch.rand(1003, dtype=dtype)
    expected = torch.from_numpy(np.sqrt(x.numpy()))
    into = torch.empty(1003, dtype=dtype)
    torch.sqrt(x, out=into)
    for found in x.sqrt(), x.clone().sqrt_(), into, *torch._foreach_sqrt([x]):
        assert torch.equal(found, expected)
    assert torch.equal(x[::3].sqrt(), expected[::3])
y = torch.tensor([0.0, 4.0, 9.0], requires_grad=True)
y.sqrt().sum().backward()
assert y.grad[:2].tolist() == [float("inf"), 0.25]
assert torch.tensor(-1.0).sqrt().isnan()
assert torch.rand(3, 4).sqrt().shape == (3, 4)
# The types that torch computes itself stay with it.
assert torch.arange(5).sqrt().dtype == torch.float32
assert torch.tensor([4.0]).bfloat16().sqrt().dtype == torch.bfloat16
assert torch.tensor([-4 + 0j]).sqrt().tolist() == [2j]
"""


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch does not use MKL")
def test_square_roots_are_exact_in_all_forms() -> None:
    """In a process of its own, because the replacement stays."""
    subprocess.run([sys.executable, "-P", "-c", PROGRAM], check=True)
