"""Schedules of the learning rate."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from elastane import Run

from .registry import register_exact, register_refused
from .samples import CLASSES, VECTORS

SCHEDULES: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, gamma=0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 9]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, factor=0.1, total_iters=4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=8),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=12),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4, T_mult=2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=13),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=12, power=2.0),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + 0.3 * step)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.95 if step % 2 else 0.9),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.ExponentialLR(o, 0.8)], milestones=[4]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


@register_exact(
    "Every schedule of `torch.optim.lr_scheduler`",
    note="Pass it to `prepare`; the run steps it once after every step: " + ", ".join(SCHEDULES) + ".",
    variants=tuple(SCHEDULES),
)
def schedules(run: Run, kind: str) -> None:
    """The run steps the schedule."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
    scheduler = SCHEDULES[kind](optimizer)
    model, optimizer = run.prepare(model, optimizer, scheduler=scheduler)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
    run.print(*(group["lr"].hex() for group in optimizer.param_groups))


@register_exact("`ReduceLROnPlateau`", note="Pass it to `prepare`; the script steps it.")
def on_plateau(run: Run) -> None:
    """The learning rate decreases when the loss of the step has not improved."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, threshold=0.5)
    model, optimizer = run.prepare(model, optimizer, scheduler=scheduler)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        scheduler.step(step.loss)
    run.print(optimizer.param_groups[0]["lr"])


@register_exact("A schedule of momentum and weight decay")
def schedule_of_your_own(run: Run) -> None:
    """A function of `step.number` sets hyperparameters of the optimizer."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        for group in optimizer.param_groups:
            group.update(momentum=0.9 - 0.02 * step.number, weight_decay=0.01 * step.number)


@register_refused(
    "A schedule stepped by the run and by the script",
    "scheduler.step",
    instead="Remove `scheduler.step()`, or keep the schedule in `run.keep` and step it between steps.",
)
def stepped_twice(run: Run) -> None:
    """The script steps the schedule that it has passed to `prepare`."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    model, optimizer = run.prepare(model, optimizer, scheduler=scheduler)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        scheduler.step()


@register_refused(
    "A schedule that the run does not know",
    "schedule",
    instead="Pass it to `prepare` or keep it in `run.keep`. Otherwise it starts from its beginning in a "
    "worker that joins.",
    shown=True,
)
def unknown_schedule(run: Run) -> None:
    """The script steps a schedule that it has neither passed to `prepare` nor kept."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        scheduler.step()
