"""A square root with equal bits on all CPUs, in place of torch's, for portable numerics.

MKL computes the square roots of torch. Its code that runs on all CPUs begins with the instruction RSQRTPS, an
approximation that each maker of CPUs rounds in its own way, so Adam would train other bits on an AMD CPU than
on an Intel one. NumPy uses the instruction SQRTPS, which IEEE 754 defines to the last bit.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

EXACT = (torch.float32, torch.float64)
"""The types with square roots that MKL computes; torch itself computes the others."""

_library: list[torch.library.Library] = []


def replace_square_root() -> None:
    """Let torch take square roots of CPU tensors from NumPy in this process; once is enough."""
    if _library or not torch.backends.mkl.is_available():
        return
    library = torch.library.Library("aten", "IMPL")
    for name, compute in (("sqrt", _compute), ("sqrt_", _compute_in_place), ("sqrt.out", _compute_into)):
        original = torch.library.get_kernel(f"aten::{name}", "CPU")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            kernel = _restrict(compute, original)
            library.impl(name, kernel, "CPU", with_keyset=True, allow_override=True)
    _library.append(library)


def _restrict(compute: Callable[..., torch.Tensor], original: Any) -> Callable[..., torch.Tensor]:
    """Return a kernel that computes tensors of the types in `EXACT`, and leaves others to the original."""

    def call(keys: Any, tensor: torch.Tensor, **into: torch.Tensor) -> torch.Tensor:
        if all(each.dtype in EXACT for each in (tensor, *into.values())):
            return compute(tensor, **into)
        result: torch.Tensor = original.call_boxed(keys, tensor, **into)
        return result

    return call


def _compute(tensor: torch.Tensor) -> torch.Tensor:
    return _compute_into(tensor, out=torch.empty_like(tensor))


def _compute_in_place(tensor: torch.Tensor) -> torch.Tensor:
    return _compute_into(tensor, out=tensor)


def _compute_into(tensor: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    if out.shape != tensor.shape:
        out.resize_(tensor.shape)
    with np.errstate(invalid="ignore"):
        np.sqrt(tensor.detach().numpy(), out=out.detach().numpy(), casting="same_kind")
    return out
