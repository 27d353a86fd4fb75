"""Checks of the arguments of ``run.prepare``, before the run lays out or moves any state; and of a wire."""

import math
from collections.abc import Iterable
from typing import get_args

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from elastane.common.errors import BadInput
from elastane.run.nouns.round_options import InnerName, WireName
from elastane.run.worker.cuda_graphs import check_no_graphs
from elastane.run.worker.data.dataset_checks import check_count
from elastane.run.worker.state.json_state import Stateful
from elastane.run.worker.state.live_objects import find_live_modules, find_live_objects
from elastane.run.worker.state.wire_formats import WireFormat
from elastane.run.worker.values import describe_value, to_number

FRAMEWORKS = frozenset(
    {"accelerate", "deepspeed", "fairscale", "horovod", "lightning", "lightning_fabric", "pytorch_lightning"}
)
"""Packages that wrap models and optimizers to divide the work among processes of their own."""
FULLY_SHARDED = "FSDPModule"
"""The class that ``fully_shard`` gives a module."""
WRAPPERS = frozenset(
    {
        "DataParallel",
        "DistributedDataParallel",
        "FullyShardedDataParallel",
        FULLY_SHARDED,
        "DeepSpeedEngine",
        "PipelineEngine",
        "_FabricModule",
    }
)
"""Classes of such wrappers, by name: most of them are not installed, or slow to import."""
SHARES_STEPS = "shares_steps"
"""The attribute of a wrapper's strategy that leaves the division of a step to the run."""


def check_arguments(
    model: object,
    optimizer: object,
    *,
    scheduler: object,
    scaler: object,
    clip_grad_norm: object,
    processes: int = 1,
    outer: object = None,
    inner_state: object = "fresh",
) -> None:
    """Refuse arguments that the run cannot train.

    Args:
        processes: of each worker.

    Raises:
        BadInput: an argument has the wrong type, is wrapped by another framework, or does not fit the others.
    """
    _check_model(model, processes)
    _check_optimizer(optimizer)
    _check_scheduler(scheduler, optimizer)
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise BadInput(
            f"run.prepare was given an invalid scaler: {describe_value(scaler)}",
            means="the run scales losses with a torch.amp.GradScaler",
            do="pass scaler=torch.amp.GradScaler(), or leave it out",
        )
    if isinstance(scaler, GradScaler) and scaler.is_enabled() and outer is not None:
        raise BadInput(
            "run.prepare was given a scaler and an outer optimizer",
            means="each virtual rank would move the scale by itself, so ranks would end with different ones",
            do="leave the scaler out, and use bf16: torch.autocast(device, dtype=torch.bfloat16)",
        )
    if inner_state not in get_args(InnerName) or (inner_state != "fresh" and outer is None):
        raise BadInput(
            f"run.prepare was given an invalid inner_state: {inner_state!r}"
            + ("" if outer is not None else ", and no outer optimizer"),
            means="the state of the inner optimizer begins fresh or averaged in each round of run.rounds",
            do='pass inner_state="fresh" or inner_state="averaged", with outer=elastane.outer.Nesterov()',
        )
    if clip_grad_norm is not None:
        norm = None if isinstance(clip_grad_norm, bool) else to_number(clip_grad_norm)
        if norm is None or math.isnan(norm) or norm <= 0:
            raise BadInput(
                f"run.prepare was given an invalid clip_grad_norm: {describe_value(clip_grad_norm)}",
                means="clip_grad_norm is the largest norm that the gradient of a step may have",
                do="pass a number above 0, such as clip_grad_norm=1.0, or leave it out",
            )


def _check_model(model: object, processes: int) -> None:
    if not isinstance(model, nn.Module):
        several = isinstance(model, list | tuple | dict)
        raise BadInput(
            f"run.prepare was given {describe_value(model)} as its model",
            means="a run trains one torch.nn.Module",
            do="put all models into one nn.ModuleDict or nn.ModuleList"
            if several
            else "pass the module as the first argument: run.prepare(model, optimizer)",
        )
    wrapper = find_wrapper(model.modules(), processes)
    if wrapper is not None:
        raise build_wrapper_error(wrapper)
    check_no_graphs(model)
    check_process_group(processes)


def _check_optimizer(optimizer: object) -> None:
    if not isinstance(optimizer, Optimizer):
        if isinstance(optimizer, type):
            do = f"pass an instance: {optimizer.__name__}(model.parameters(), lr=...)"
        elif isinstance(optimizer, list | tuple | dict):
            do = "build one optimizer, with a parameter group for each of them"
        else:
            do = "pass an optimizer, such as torch.optim.AdamW(model.parameters(), lr=1e-3)"
        raise BadInput(
            f"run.prepare was given {describe_value(optimizer)} as its optimizer",
            means="a run trains with one torch.optim.Optimizer",
            do=do,
        )
    if not isinstance(getattr(optimizer, "param_groups", None), list) or not hasattr(optimizer, "state"):
        raise BadInput(
            f"the optimizer ({type(optimizer).__name__}) has no param_groups",
            means="its __init__ did not run to its end",
            do="have its __init__ call super().__init__(params, defaults)",
        )
    package = type(optimizer).__module__.partition(".")[0]
    if package in FRAMEWORKS:
        raise BadInput(
            f"the optimizer is wrapped by {package} ({type(optimizer).__name__})",
            means=f"{package} divides the work among its own processes, and in a run Elastane divides it",
            do=f"remove {package}: pass the optimizer that it wraps, and the model that it wraps",
        )


def _check_scheduler(scheduler: object, optimizer: object) -> None:
    if scheduler is None:
        return
    if isinstance(scheduler, type) or not hasattr(scheduler, "step") or not isinstance(scheduler, Stateful):
        raise BadInput(
            f"run.prepare was given an invalid scheduler: {describe_value(scheduler)}",
            means="a learning-rate schedule must have the methods step, state_dict and load_state_dict",
            do="pass a schedule, such as torch.optim.lr_scheduler.LambdaLR(optimizer, function)",
        )
    other = getattr(scheduler, "optimizer", None)
    if isinstance(other, Optimizer) and other is not optimizer:
        raise BadInput(
            f"the schedule ({type(scheduler).__name__}) belongs to another optimizer",
            means="it would not change the learning rate of the optimizer that trains",
            do="build the schedule with the optimizer that you pass to run.prepare",
        )


def find_wrapper(modules: Iterable[nn.Module], processes: int = 1) -> nn.Module | None:
    """Return the first module that divides its work among devices or processes; None: no module does.

    Args:
        processes: of each worker: several ones may divide a model by ``fully_shard``.
    """
    wrappers = WRAPPERS if processes == 1 else WRAPPERS - {FULLY_SHARDED}
    return next((m for m in modules if any(kind.__name__ in wrappers for kind in type(m).__mro__)), None)


def build_wrapper_error(wrapper: nn.Module) -> BadInput:
    """Return the error for a model that another framework has wrapped."""
    # fully_shard gives a module a class that is derived from its own class and FSDPModule.
    name = next(kind.__name__ for kind in type(wrapper).__mro__ if kind.__name__ in WRAPPERS)
    return BadInput(
        f"the model is wrapped in {name}",
        means=f"Elastane divides each step among its workers; {name} would divide it a second time",
        do=f"remove {name}: pass the model itself (model.module of a wrapper) to run.prepare, and start "
        "several workers with elastane run --workers N",
    )


def check_not_wrapped(model: nn.Module, processes: int = 1) -> None:
    """Refuse a wrapper that the script put around the model after ``run.prepare``."""
    prepared = {id(module) for module in model.modules()}
    for module in find_live_modules():
        # The wrapper of Fabric divides nothing itself if its strategy is Elastane's.
        divides = not getattr(getattr(module, "_strategy", None), SHARES_STEPS, False)
        wraps = any(id(part) in prepared for part in module.children())
        if find_wrapper([module], processes) is not None and wraps and divides:
            raise build_wrapper_error(module)


def check_process_group(processes: int = 1) -> None:
    """Refuse a process group of several processes, unless these are the processes of one worker."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    members = torch.distributed.get_world_size()
    if members > 1 and members != processes:
        raise BadInput(
            f"the script created a process group of {members} processes with "
            "torch.distributed.init_process_group",
            means="workers of a run join and leave, but the members of a process group are fixed",
            do="remove init_process_group: the run sums gradients, and run.evaluate sums all other values",
        )


def list_used_scalers() -> list[GradScaler]:
    """Return the scalers that have scaled a loss."""
    # A scaler creates its scale at its first use.
    return [s for s in find_live_objects(GradScaler) if s.is_enabled() and s._scale is not None]


def check_scalers(before: list[GradScaler]) -> None:
    """Refuse a scaler that the script itself uses in its inner loop.

    Args:
        before: `list_used_scalers` before the first microbatch, with the scaler of ``run.prepare``.
    """
    for scaler in list_used_scalers():
        if all(scaler is not other for other in before):
            raise BadInput(
                "the script scales losses with a GradScaler that the run does not know",
                means="the gradients would keep the scale, and a worker that joins would use another scale",
                do="pass it to run.prepare(model, optimizer, scaler=scaler) and write step.backward(loss), "
                "without scaler.scale, unscale_, step and update",
            )


def check_delay(delay: object) -> None:
    """Refuse a delay of differences other than none and one round.

    Raises:
        BadInput: it is invalid.
    """
    if isinstance(delay, bool) or delay not in (0, 1):
        raise BadInput(
            f"run.rounds was given an invalid delay: {describe_value(delay)}",
            means="the model takes the changes of a round at its end, or one round later",
            do="pass delay=1, or leave it out",
        )


def parse_wire(wire: object, group: int = 1, ranks: int = 1) -> WireFormat | None:
    """Return the format with this name; None: nothing is rounded.

    Args:
        group: see `WireFormat`.
        ranks: the number of virtual ranks.

    Raises:
        BadInput: no format has this name, or the virtual ranks do not divide into such groups.
    """
    check_count("run.rounds", "group", group)
    if ranks % group or group & (group - 1):
        raise BadInput(
            f"run.rounds was given group={group} for {ranks} virtual ranks",
            means="virtual ranks are rounded in groups that are nodes of the tree in which they are added",
            do="choose a power of two that divides the virtual ranks, such as those of one site",
        )
    if wire == "full":
        return None
    for name in get_args(WireName):
        if wire == name:
            return WireFormat(name, group)
    raise BadInput(
        f"run.rounds was given an invalid wire: {describe_value(wire)}",
        means="wire is the format in which the differences of a round cross to other machines",
        do=f"pass one of {', '.join(get_args(WireName))}",
    )
