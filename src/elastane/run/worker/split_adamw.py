"""AdamW for models in bfloat16: nothing of an update is lost.

A weight in bfloat16 has 8 significant bits. A usual update is smaller than half of the last one, so plain
AdamW rounds it away: a learning rate of 3e-4 with a weight decay of 0.1 decays no weight at all. `SplitAdamW`
trains in float32. The model has the upper 16 bits of each weight, rounded, and the optimizer has the rest
(Kalamkar et al., *Optimizing Deep Learning Recommender Systems' Training on CPU Cluster Architectures*, 2020,
section VII, Split-SGD-BF16), so both together take no more memory than the weight in float32.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, overload

import torch
from torch.optim.adamw import adamw

from elastane.common.errors import BadInput

PART_ELEMENTS = 1 << 24
"""The elements that are updated at once: the update needs several times their memory."""
LARGEST_REST = (1 << 15) - 1

Parameters = Iterable[torch.Tensor] | Iterable[dict[str, Any]]


class SplitAdamW(torch.optim.AdamW):
    """AdamW that trains parameters in bfloat16 as if they were in float32; it updates others as AdamW does.

    For each element of a parameter in bfloat16 the state has 10 bytes: two moments in float32 (``exp_avg``,
    ``exp_avg_sq``) and the lower 16 bits of the weight (``low_bits``, int16).

    Args:
        params: parameters, or groups of parameters.
        lr: learning rate.
        betas: the decay of the first and of the second moment.
        eps: is added to the root of the second moment.
        weight_decay: decoupled, as in AdamW.

    Raises:
        ValueError: an argument is out of its range.
        BadInput: at the first step: a parameter is in float16.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all parameters that have a gradient.

        Args:
            closure: computes the loss again, and returns it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(group, parameter)
        return loss

    def _update(self, group: dict[str, Any], parameter: torch.Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state.update(_begin_state(parameter))
        own = [parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"]]
        is_split = "low_bits" in state
        for values, gradient, first, second, *rest in _cut([*own, state["low_bits"]] if is_split else own):
            weights = join_bits(values, *rest) if is_split else values
            adamw(
                [weights],
                [gradient.to(weights.dtype)],
                [first],
                [second],
                [],
                [state["step"].clone()],  # one step, although each part counts it
                foreach=False,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=group["maximize"],
            )
            if is_split:
                split_bits(weights, values, *rest)
        state["step"] += 1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of ``state_dict()``; the state keeps its types, which torch would change."""
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            for key, entry in state_dict["state"].get(number, {}).items():
                device = "cpu" if key == "step" else parameter.device
                self.state[parameter][key] = entry.to(device, copy=True)


def _begin_state(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    if parameter.dtype == torch.float16:
        raise BadInput(
            "SplitAdamW cannot split a parameter in float16",
            means="a weight in float16 is not the upper half of one in float32",
            do="keep the model in float32 under autocast, or in bfloat16",
        )
    is_split = parameter.dtype == torch.bfloat16
    moments = torch.float32 if is_split else parameter.dtype
    state = {"step": torch.tensor(0.0)}
    state |= {key: torch.zeros_like(parameter, dtype=moments) for key in ("exp_avg", "exp_avg_sq")}
    if is_split:
        state["low_bits"] = torch.zeros_like(parameter, dtype=torch.int16)
    return state


def _cut(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Return equal parts of tensors of one shape, as views; those with gaps are not cut."""
    elements = tensors[0].numel()
    if elements <= PART_ELEMENTS or not all(tensor.is_contiguous() for tensor in tensors):
        yield tensors
        return
    flat = [tensor.view(-1) for tensor in tensors]
    for start in range(0, elements, PART_ELEMENTS):
        yield [tensor[start : start + PART_ELEMENTS] for tensor in flat]


def join_bits(upper: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """Return new weights in float32.

    Args:
        upper: their upper 16 bits, in bfloat16.
        rest: what rounding has taken from them, int16, in units of the last place of float32.
    """
    return ((upper.view(torch.int16).to(torch.int32) << 16) + rest).view(torch.float32)


def split_bits(weights: torch.Tensor, upper: torch.Tensor, rest: torch.Tensor) -> None:
    """Split weights in float32; `join_bits` joins them.

    A weight exactly between two numbers of bfloat16, of which the lower is even, has a rest of 2^15, which
    int16 cannot hold: it loses one unit of the last place of float32.
    """
    upper.copy_(weights)
    taken = weights.view(torch.int32) - (upper.view(torch.int16).to(torch.int32) << 16)
    rest.copy_(taken.clamp_(-LARGEST_REST - 1, LARGEST_REST))
