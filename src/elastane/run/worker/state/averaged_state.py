"""The state of the inner optimizer that virtual ranks share: each begins with the mean of the last round.

It is part of the committed state, like the buffers of the model: workers add it up in the same tree, and it
is in blocks, checkpoints and digests. A buffer takes the mean of its changes, and this state its own mean:
second moments stay above zero however they are rounded.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import nn, optim

from elastane.common.errors import BadInput
from elastane.run.worker.state.shared_optimizer_state import SharedOptimizerState

PREFIX = "inner_optimizer.state"
"""The names of the tensors begin with it, in errors and checkpoints."""
AVERAGED: tuple[type[optim.Optimizer], ...] = (
    optim.Adadelta,
    optim.Adagrad,
    optim.Adam,
    optim.AdamW,
    optim.Adamax,
    optim.RAdam,
    optim.RMSprop,
    optim.SGD,
)
"""Optimizers with a state of sums, means and counters, all of which begin with zeros unless they exist at
once. Others have products, or rates that they adapt."""


class AveragedState:
    """The state of an optimizer, as buffers of a module that belongs to no model.

    Args:
        optimizer: the optimizer given to ``prepare``; it has made no step yet.
        names: the names of the parameters.

    Attributes:
        module: has the tensors; the run replaces them with others of the same kind.

    Raises:
        BadInput: the mean of the optimizer's states has no meaning.
    """

    def __init__(self, optimizer: optim.Optimizer, names: Mapping[nn.Parameter, str]) -> None:
        if type(optimizer) not in AVERAGED:
            raise BadInput(
                f"the state of {type(optimizer).__name__} cannot be averaged",
                means="virtual ranks would begin with a mean that the optimizer never computes itself",
                do='leave inner_state="averaged" out; or use '
                + ", ".join(kind.__name__ for kind in AVERAGED),
            )
        self.module = nn.Module()
        self._optimizer = optimizer
        # Of each tensor its parameter, its entry, the name of its buffer, and where the optimizer has it.
        self._entries: list[tuple[nn.Parameter, str, str, torch.device]] = []
        self._names: dict[str, str] = {}
        for parameter, key, tensor in _find_state(optimizer):
            buffer = f"{key}_{len(self._entries)}"
            self._entries.append((parameter, key, buffer, tensor.device))
            self._names[buffer] = f"{PREFIX}.{key}.{names.get(parameter, '?')}"
            self.module.register_buffer(buffer, tensor.to(parameter.device))

    def list_buffers(self) -> Iterator[tuple[str, str]]:
        """Yield each buffer with its name; those with one element for each of the parameter's come last."""
        return iter(sorted(self._names.items(), key=lambda item: self.module.get_buffer(item[0]).dim() > 0))

    def lend(self) -> None:
        """Let the optimizer work on the buffers, of which the run has a committed copy."""
        for parameter, key, buffer, device in self._entries:
            self._optimizer.state[parameter][key] = self.module.get_buffer(buffer).to(device)

    @torch.no_grad()
    def take(self) -> None:
        """Take the state back: an optimizer may have replaced a tensor, or have it elsewhere."""
        for parameter, key, buffer, _ in self._entries:
            tensor, own = self._optimizer.state[parameter][key], self.module.get_buffer(buffer)
            if tensor is not own:
                own.copy_(tensor)


@torch.no_grad()
def _find_state(optimizer: optim.Optimizer) -> list[tuple[nn.Parameter, str, torch.Tensor]]:
    """Return the tensors that the optimizer has after its first step, as they are before it.

    It makes that step with gradients of zero; then everything is as before.
    """
    before = SharedOptimizerState(optimizer).snapshot()
    begun = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    values = [parameter.clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    # Not the method of the instance: a schedule counts its calls.
    type(optimizer).step(optimizer)
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = None
        parameter.copy_(value)
    state = before.restore()
    return [
        (parameter, key, begun.get(parameter, {}).get(key, torch.zeros_like(entry)).clone())
        for parameter in parameters
        for key, entry in state.get(parameter, {}).items()
        if isinstance(entry, torch.Tensor)
    ]
