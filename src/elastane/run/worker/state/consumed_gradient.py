"""The tensor in ``.grad`` of a trained parameter after the run has taken its gradient."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._guards import CompileContext

from elastane.common.errors import BadInput

CONVERSIONS = frozenset(
    {
        *("to", "cpu", "cuda", "float", "double", "half", "bfloat16"),
        *("is_floating_point", "is_complex", "dim", "_has_compatible_shallow_copy_type"),
    }
)
"""Functions that ``Module.to`` and similar methods call on each gradient."""

SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class ConsumedGradient(torch.Tensor):
    """A stand-in for a gradient that the run has taken; it refuses every use by the script.

    It is sparse and without elements: if the script runs a backward pass of its own, autograd puts a dense
    gradient in its place.
    """

    @classmethod
    def make(cls, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return a stand-in of each parameter's shape."""
        return [torch.Tensor._make_subclass(cls, _make_empty(parameter)) for parameter in parameters]

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        _types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        # The compiler reads .grad of the parameters that it compiles for, and Module.to converts .grad.
        with torch._C.DisableTorchFunctionSubclass():
            if name in CONVERSIONS or CompileContext.try_get() is not None:
                return func(*args, **(kwargs or {}))
            if func == SET_DATA and args[1].is_sparse:
                return None  # Module.to sets the converted tensor
            if name == "share_memory_":
                return args[0]  # it has no memory
        raise BadInput(
            f"the script used .grad of a trained parameter ({name.strip('_')}), as clip_grad_norm_, "
            "clip_grad_value_, zero_grad and GradScaler.unscale_ do",
            means="the run takes the gradient of each microbatch, sums the gradients of all workers and "
            "steps the optimizer; .grad is empty then, so a change there would have no effect",
            do="to clip, write run.prepare(model, optimizer, clip_grad_norm=1.0); leave zero_grad out; "
            "to change a gradient while it is computed, use parameter.register_hook(function)",
        )


def _make_empty(parameter: torch.Tensor) -> torch.Tensor:
    """Return a sparse tensor of zeros."""
    indices = torch.empty((parameter.dim(), 0), dtype=torch.int64, device=parameter.device)
    values = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)
