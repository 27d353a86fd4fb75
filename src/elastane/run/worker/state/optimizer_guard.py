"""The refusal of optimizer steps and of ``zero_grad`` calls by the script.

Torch calls a hook before any optimizer steps. Only the run steps the optimizer of the run. Another optimizer
may exist for one microbatch, or between two steps: a joining worker would lack the state of one that exists
longer.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from elastane.common.errors import BadInput


class OptimizerGuard:
    """Watches which optimizers the process steps.

    Args:
        is_kept: returns whether an optimizer of the script is in ``run.keep``.

    Attributes:
        position: the position of the script; it differs in each microbatch and between any two steps.
    """

    def __init__(self, optimizer: Optimizer, is_kept: Callable[[Optimizer], bool], model: nn.Module) -> None:
        self._optimizer, self._is_kept, self._model = optimizer, is_kept, model
        self.position: tuple[Any, ...] = ()
        self._is_run_stepping = False
        self._positions: weakref.WeakKeyDictionary[Optimizer, tuple[Any, ...]] = weakref.WeakKeyDictionary()
        self._hook = register_optimizer_step_pre_hook(self._check_step)
        # Torch has no hook for zero_grad. Saved and copied optimizers lack this attribute.
        vars(optimizer)["zero_grad"] = _refuse_zero_grad

    def remove(self) -> None:
        """Remove the hook at the end of the run."""
        self._hook.remove()
        vars(self._optimizer).pop("zero_grad", None)

    @contextmanager
    def allow_steps(self) -> Iterator[None]:
        """Allow the run to step the optimizer inside the block."""
        self._is_run_stepping = True
        try:
            yield
        finally:
            self._is_run_stepping = False

    def _check_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._is_run_stepping:
            return
        if optimizer is self._optimizer:
            raise BadInput(
                "optimizer.step() was called by the script",
                means="the run steps the optimizer itself, after it has summed the gradients of all workers",
                do="leave out optimizer.step(); a microbatch needs only step.backward(loss)",
            )
        model_parameters = {id(parameter) for parameter in self._model.parameters()}
        foreign = all(
            id(p) not in model_parameters for group in optimizer.param_groups for p in group["params"]
        )
        if foreign and (
            self._is_kept(optimizer) or self._positions.setdefault(optimizer, self.position) == self.position
        ):
            return
        raise BadInput(
            f"the script called optimizer.step() of a second optimizer ({type(optimizer).__name__})",
            means="a worker that joins would lack its state and the parameters that it trains",
            do="make its parameters part of the model and a group of the optimizer of run.prepare; or if you "
            "step it only between the steps, keep it and its module: run.keep['other'] = optimizer",
        )


def _refuse_zero_grad(*_args: object, **_options: object) -> NoReturn:
    raise BadInput(
        "optimizer.zero_grad() was called by the script",
        means="the run takes each gradient when it is computed, so no gradient is left to set to zero",
        do="leave out optimizer.zero_grad(); after a backward pass of your own write model.zero_grad()",
    )
