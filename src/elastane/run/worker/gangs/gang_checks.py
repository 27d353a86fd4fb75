"""Refusals of what a worker of several processes cannot do exactly yet, with the reason and another way."""

from torch.amp import GradScaler
from torch.optim import Optimizer

from elastane.common.errors import BadInput
from elastane.run.nouns.spec import RunSpec
from elastane.run.worker.data.batch_sources import BatchPlan
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.optimizer_shards import ELEMENTWISE

ONE_PROCESS = "leave --processes out: a worker then is one process"
OWN_LOOP = "; or divide the model by fully_shard in a loop over elastane.join(), as docs/gangs.md shows"


def check_gang(
    spec: RunSpec, layout: ModelLayout, optimizer: Optimizer, *, scaler: GradScaler | None
) -> None:
    """Refuse a training that a worker of several processes cannot make exactly.

    Raises:
        BadInput: for this reason.
    """
    if layout.buffer_extents:
        raise BadInput(
            f"the model has the buffer {layout.buffer_extents[0].name}, which a step may change",
            means="each process of the worker sees other microbatches, and nothing averages the changes yet",
            do="use a layer without running statistics, such as LayerNorm or GroupNorm; or register it with "
            f"persistent=False, if it is a cache; or {ONE_PROCESS}",
        )
    if type(optimizer) not in ELEMENTWISE:
        raise BadInput(
            f"{type(optimizer).__name__} is not available with --processes",
            means="it may update an element by others of its tensor, and a process has only a part of that",
            do=f"use one that updates each element by itself, such as AdamW or SGD; or {ONE_PROCESS}",
        )
    if scaler is not None and scaler.is_enabled():
        raise BadInput(
            "run.prepare was given a scaler, and the worker has several processes",
            means="whether a scaled gradient overflows has been tried with one process per worker only",
            do=f"train in bfloat16 or float32, which need no scaler; or {ONE_PROCESS}",
        )
    if spec.save_optimizer:
        raise BadInput(
            "--save-optimizer is not available with --processes",
            means="each process has a part of the optimizer state, and none gathers it yet",
            do=f"leave --save-optimizer out; or {ONE_PROCESS}",
        )


def refuse_in_gang(what: str, why: str, processes: int, *, instead: str = "") -> None:
    """Refuse a method of the run, or a library, in a worker of several processes.

    Args:
        instead: another way for a model that has to be divided.

    Raises:
        BadInput: the worker has several processes.
    """
    if processes > 1:
        raise BadInput(f"{what} is not available with --processes", means=why, do=ONE_PROCESS + instead)


def check_ranks(plan: BatchPlan, spec: RunSpec, processes: int) -> None:
    """Refuse a step with too few virtual ranks, or with a number that the processes of a worker cannot share.

    Args:
        processes: of a worker that compute different virtual ranks.

    Raises:
        BadInput: for this reason.
    """
    virtual_ranks, workers = plan.virtual_ranks, spec.least_ranks // spec.processes
    if virtual_ranks < workers * processes:
        most = virtual_ranks // processes
        kind, unit = ("", "worker")
        more = "a smaller microbatch" if plan.inner_steps == 1 else "more ranks"
        if processes > 1:
            kind, unit = f" of {processes} processes", "process of a worker"
        raise BadInput(
            f"a step has {virtual_ranks} virtual ranks, too few for {workers} workers{kind}",
            means=f"each {unit} computes at least one virtual rank of every step",
            do=f"use --workers up to {most}, or {more}" if most else f"use {more}",
        )
    if processes & (processes - 1):
        raise BadInput(
            f"{processes} processes of a worker compute different microbatches",
            means="gradients are added in the order of a binary tree, so their number is a power of two",
            do="choose another size of the data dimension",
        )
    if virtual_ranks % processes:
        raise BadInput(
            f"{processes} processes cannot share the {virtual_ranks} virtual ranks of a step equally",
            means="the processes of a worker compute one virtual rank each, all at the same time",
            do=f"choose a global_batch that is a multiple of {processes} times the microbatch",
        )
    last = plan.samples_per_epoch % plan.global_batch
    if (filled := -(-last // plan.microbatch)) % processes:
        raise BadInput(
            f"{processes} processes cannot share the {filled} microbatches of the last step of an epoch "
            f"equally; it has {last} samples",
            means="a forward pass of a divided model needs all processes of the worker, and some would have "
            "no microbatch",
            do="leave these samples out: run.steps(..., drop_last=True)",
        )
