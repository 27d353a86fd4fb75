"""The import of torch's compiler, which takes as long as that of torch, and which most scripts do not need.

Torch imports it when a process makes its first optimizer, and in each step, only to keep the compiler away
from parts of optimizers. As long as the compiler is not loaded, there is nothing to keep away.
"""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMPILER = "torch._dynamo"
METHODS = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
"""The methods of `torch.optim.Optimizer` that the compiler must not see."""
KEPT = "__dynamo_disable"
"""Where torch keeps the form of such a method that the compiler does not see, once it has made it."""
GRAD_MODE_NAMES = {
    *("torch._dynamo", "_dynamo", "graph_break"),
    *("cast", "Optimizer", "defaults", "is_grad_enabled", "set_grad_enabled"),
}
"""All names in torch's wrapper of the steps of its optimizers, which sets the mode of autograd."""
SIGNS = (
    *(b"torch.compile", b"torch._dynamo", b"torch.utils.checkpoint", b"gradient_checkpointing"),
    # Libraries that import it.
    *(b"transformers", b"lightning", b"peft", b"trl"),
)
"""Texts in scripts that need the compiler."""
LARGE_PARTS = (COMPILER, "torch.distributed.checkpoint")
"""The parts of torch that such a script imports."""
LARGEST_SCRIPT_BYTES = 1 << 20


def list_large_parts(script: Path) -> tuple[str, ...]:
    """Return the large parts of torch that the workers of a script import; others may still do so later."""
    try:
        with script.open("rb") as file:
            text = file.read(LARGEST_SCRIPT_BYTES)
    except OSError:
        # The worker reports it.
        return ()
    return LARGE_PARTS if any(sign in text for sign in SIGNS) else ()


def postpone_compiler() -> None:
    """Let optimizers work in this process, and its forks, without the compiler until something else loads it.

    If torch's own code is another one than that which this function knows, torch loads the compiler as usual.
    """
    from torch import optim

    for name in METHODS:
        wrapper = getattr(optim.Optimizer, name, None)
        method = getattr(wrapper, "__wrapped__", None)
        if method is not None and not hasattr(method, KEPT):
            setattr(method, KEPT, _make_form(wrapper, method))
    for kind in vars(optim).values():
        step = vars(kind).get("step") if isinstance(kind, type) else None
        if step is not None and _sets_grad_mode_only(step):
            kind.step = _make_step(step)


def _make_form(wrapper: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if COMPILER not in sys.modules:
            return method(*args, **kwargs)
        # Now torch makes its own form.
        vars(method).pop(KEPT, None)
        return wrapper(*args, **kwargs)

    return call


def _sets_grad_mode_only(step: Callable[..., Any]) -> bool:
    """Return whether a step is wrapped, only to set the mode of autograd and to keep the compiler away."""
    code = getattr(step, "__code__", None)
    return code is not None and hasattr(step, "__wrapped__") and set(code.co_names) == GRAD_MODE_NAMES


def _make_step(wrapper: Any) -> Callable[..., Any]:
    import torch

    method = wrapper.__wrapped__

    @functools.wraps(wrapper)
    def step(*args: Any, **kwargs: Any) -> Any:
        if COMPILER in sys.modules:
            return wrapper(*args, **kwargs)
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(args[0].defaults["differentiable"])
        try:
            return method(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)

    return step
