"""Optimizers.

With `--copies all` a run trains with any optimizer that updates each parameter from its own gradient and
state. With `--copies N` the optimizer must be a known one that updates each element by itself.
"""

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

import elastane
from elastane import Run

from .registry import register_exact, register_refused
from .samples import CLASSES, VECTORS

ELEMENTWISE: dict[str, Callable[..., Optimizer]] = {
    "ASGD": torch.optim.ASGD,
    "Adadelta": torch.optim.Adadelta,
    "Adagrad": torch.optim.Adagrad,
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": torch.optim.RMSprop,
    "Rprop": torch.optim.Rprop,
    "SGD": torch.optim.SGD,
}


@register_exact(
    "Every elementwise optimizer of `torch.optim`",
    variants=tuple(ELEMENTWISE),
    note=", ".join(ELEMENTWISE) + ".",
)
def elementwise(run: Run, kind: str) -> None:
    """The optimizer has two parameter groups with different hyperparameters."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.005}]
    optimizer = ELEMENTWISE[kind](groups, lr=0.01)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_exact("A model in bf16", note="`elastane.SplitAdamW` loses nothing of an update.")
def in_bfloat16(run: Run) -> None:
    """All weights are in bf16, and the optimizer keeps their lower bits."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES)).to(torch.bfloat16)
    optimizer = elastane.SplitAdamW(model.parameters(), lr=0.01)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            logits = model(inputs.to(torch.bfloat16)).float()
            step.backward(functional.cross_entropy(logits, targets))


OPTIONS: dict[str, Callable[[Iterable[nn.Parameter]], Optimizer]] = {
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "nesterov": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "tensor-lr": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01), capturable=False),
}


@register_exact("Options of optimizers", variants=tuple(OPTIONS), note=", ".join(OPTIONS) + ".")
def options(run: Run, kind: str) -> None:
    """The optimizer has another implementation, or a learning rate in a tensor."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = OPTIONS[kind](model.parameters())
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


COUPLED: dict[str, Callable[..., Optimizer]] = {
    "Adafactor": torch.optim.Adafactor,
    "Muon": torch.optim.Muon,
}


@register_exact("Adafactor and Muon", variants=tuple(COUPLED), unsharded="--copies n cannot shard")
def coupled(run: Run, kind: str) -> None:
    """The update of an element depends on its row and column; Muon takes matrices only."""
    model = nn.Sequential(nn.Linear(6, 16, bias=False), nn.Tanh(), nn.Linear(16, CLASSES, bias=False))
    optimizer = COUPLED[kind](model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


class Lion(Optimizer):
    """Moves each parameter by the sign of its momentum."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            slow, fast = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum = state["momentum"]
                parameter.sub_(momentum.lerp(parameter.grad, 1 - slow).sign_(), alpha=group["lr"])
                momentum.lerp_(parameter.grad, 1 - fast)


@register_exact("An optimizer of your own", unsharded="--copies n cannot shard")
def own_optimizer(run: Run) -> None:
    """The script has the optimizer Lion, with a state for each parameter."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = Lion(model.parameters(), lr=0.01)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


class Counted(Optimizer):
    """Counts its steps in an attribute, for a learning rate that falls."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.t = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        self.t += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"] / self.t**0.5)


@register_exact("An optimizer that counts in an attribute", unsharded="--copies n cannot shard")
def counting_optimizer(run: Run) -> None:
    """Its method `step` has `self.t += 1`."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = Counted(model.parameters(), lr=0.5)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


class Global(Optimizer):
    """Divides by a running norm of all gradients, kept under a key of its own."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([parameter.grad.norm() for parameter in parameters]).norm()
        state = self.state["all"]
        state["norm"] = 0.9 * state.get("norm", norm) + 0.1 * norm
        for parameter in parameters:
            parameter.sub_(parameter.grad / state["norm"], alpha=self.param_groups[0]["lr"])


@register_exact("An optimizer with state that belongs to no parameter", unsharded="--copies n cannot shard")
def global_state(run: Run) -> None:
    """Its `self.state["all"]` has a running norm of all gradients."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = Global(model.parameters(), lr=0.1)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


class Agc(torch.optim.SGD):
    """SGD that clips the gradient of each parameter to a part of its norm before it steps."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    limit = 0.01 * parameter.norm().clamp(min=1e-3)
                    parameter.grad.mul_((limit / parameter.grad.norm().clamp(min=1e-6)).clamp(max=1.0))
        super().step()


@register_exact("A subclass that edits gradients in `step`", unsharded="--copies n cannot shard")
def subclass(run: Run) -> None:
    """A subclass of SGD clips gradients adaptively."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = Agc(model.parameters(), lr=0.5, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_refused(
    "LBFGS", "lbfgs evaluates the loss several times a step", instead="Use an optimizer without a closure."
)
def lbfgs(run: Run) -> None:
    """The optimizer needs a closure."""
    model = nn.Linear(6, CLASSES)
    model, _ = run.prepare(model, torch.optim.LBFGS(model.parameters()))
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_refused(
    "SparseAdam", "sparseadam takes sparse gradients only", instead="Use Adam: the run makes gradients dense."
)
def sparse_adam(run: Run) -> None:
    """The optimizer takes sparse gradients only."""
    model = nn.Linear(6, CLASSES)
    model, _ = run.prepare(model, torch.optim.SparseAdam(model.parameters()))
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
