"""The tensor in ``.grad`` of a trained parameter after the run has taken its gradient."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._guards import CompileContext

from elastane.api.errors import BadInput

CONVERSIONS = frozenset(
    {
        *("to", "cpu", "cuda", "float", "double", "half", "bfloat16", "share_memory_"),
        *("is_floating_point", "is_complex", "dim", "_has_compatible_shallow_copy_type"),
    }
)
"""Functions that ``Module.to`` and similar methods call on each gradient."""

SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class ConsumedGradient(torch.Tensor):
    """A stand-in for a gradient that the run has taken; it refuses every use by the script."""

    @classmethod
    def make(cls, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return a stand-in of each parameter's shape; the stand-ins share almost all their memory."""
        zeros: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        stand_ins: list[torch.Tensor] = []
        for parameter in parameters:
            key = parameter.dtype, parameter.device
            zero = zeros.setdefault(key, torch.zeros((), dtype=key[0], device=key[1]))
            stand_ins.append(zero.expand(parameter.shape).as_subclass(cls))
        return stand_ins

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
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as torch's own subclasses do
            if name in CONVERSIONS or CompileContext.try_get() is not None:
                return func(*args, **(kwargs or {}))
            if func == SET_DATA and not args[1].any():
                return None  # Module.to sets the converted tensor
        raise BadInput(
            f"the script used .grad of a trained parameter ({name.strip('_')}), as clip_grad_norm_, "
            "clip_grad_value_, zero_grad and GradScaler.unscale_ do",
            means="the run takes the gradient of each microbatch, sums the gradients of all workers and "
            "steps the optimizer; .grad is empty then, so a change there would have no effect",
            do="to clip, write run.prepare(model, optimizer, clip_grad_norm=1.0); leave zero_grad out; "
            "to change a gradient while it is computed, use parameter.register_hook(function)",
        )
