"""The arguments of a ``Trainer`` that a run refuses, each with the reason and what to do instead."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint
from transformers.training_args import OptimizerNames, ParallelMode

from elastane.common.errors import BadInput
from elastane.run.nouns.rundir import RunDir

FUSED_WITH_BACKWARD = frozenset(
    {
        OptimizerNames.LOMO,
        OptimizerNames.ADALOMO,
        OptimizerNames.GALORE_ADAMW_LAYERWISE,
        OptimizerNames.GALORE_ADAMW_8BIT_LAYERWISE,
        OptimizerNames.GALORE_ADAFACTOR_LAYERWISE,
        OptimizerNames.APOLLO_ADAMW_LAYERWISE,
    }
)
"""Optimizers that update parameters during the backward pass."""


class RefusedArgument(msgspec.Struct, frozen=True):
    """An argument that a run refuses.

    Args:
        is_set: returns whether these arguments have the refused value.
        means: why a run cannot do it.
        do: what to do instead.
    """

    name: str
    is_set: Callable[[TrainingArguments], bool]
    means: str
    do: str


_OWN_DIVISION = "Elastane divides each step among its workers; this would divide it a second time"

REFUSED: tuple[RefusedArgument, ...] = (
    RefusedArgument(
        "fsdp",
        lambda args: bool(args.fsdp),
        _OWN_DIVISION,
        "remove fsdp and fsdp_config; elastane run --copies 2 shares the optimizer's state among workers",
    ),
    RefusedArgument(
        "deepspeed",
        lambda args: args.deepspeed is not None,
        _OWN_DIVISION,
        "remove deepspeed; elastane run --copies 2 shares the optimizer's state among workers",
    ),
    RefusedArgument(
        "parallelism_config",
        lambda args: args.parallelism_config is not None,
        _OWN_DIVISION,
        "remove parallelism_config",
    ),
    RefusedArgument(
        "torch_compile",
        lambda args: bool(args.torch_compile),
        "accelerate compiles the model, and its kernels may round differently from process to process",
        "remove torch_compile, torch_compile_backend and torch_compile_mode",
    ),
    RefusedArgument(
        "auto_find_batch_size",
        lambda args: bool(args.auto_find_batch_size),
        "each worker would choose its own batch, by the free memory of its device",
        "choose per_device_train_batch_size; elastane run --virtual-ranks N cuts the global batch finer",
    ),
    RefusedArgument(
        "train_sampling_strategy='batch_rebalance'",
        lambda args: args.train_sampling_strategy == "batch_rebalance",
        "it makes batches of different sizes, and all virtual ranks of a step have the same size",
        "use 'random', 'sequential' or 'group_by_length'",
    ),
    RefusedArgument(
        "ignore_data_skip",
        lambda args: bool(args.ignore_data_skip),
        "a resumed run would read some samples twice and others never",
        "remove ignore_data_skip: a run resumes at its sample without reading the ones before it",
    ),
    RefusedArgument(
        "push_to_hub",
        lambda args: bool(args.push_to_hub),
        "it pushes at each save, and a push cannot be taken back if its worker dies in it",
        "call trainer.push_to_hub() after trainer.train(); or after the run: hf upload REPOSITORY OUTPUT_DIR",
    ),
    RefusedArgument(
        "enable_jit_checkpoint",
        lambda args: bool(args.enable_jit_checkpoint),
        "it saves when one process gets SIGTERM; in a run a leaving worker hands its state to the others",
        "remove it; elastane run --checkpoint-every saves the whole run",
    ),
    RefusedArgument(
        "lr_scheduler_type='greedy'",
        lambda args: str(args.lr_scheduler_type).lower().endswith("greedy"),
        "it is not a schedule of torch, so a joining worker would not receive its state",
        "use another schedule, such as 'cosine' or 'reduce_lr_on_plateau'",
    ),
    RefusedArgument(
        "accelerator_config.split_batches",
        lambda args: bool(getattr(args.accelerator_config, "split_batches", False)),
        _OWN_DIVISION,
        "remove split_batches",
    ),
    RefusedArgument(
        "accelerator_config.dispatch_batches",
        lambda args: bool(getattr(args.accelerator_config, "dispatch_batches", False)),
        "one process would load the batches of all others, and its death would end the run",
        "remove dispatch_batches: each worker loads the samples of its virtual ranks",
    ),
    RefusedArgument(
        "dataloader_multiprocessing_context",
        lambda args: args.dataloader_multiprocessing_context not in (None, "fork"),
        "the loader processes of a run are forked",
        "remove it",
    ),
)


def check_training_arguments(args: TrainingArguments) -> None:
    """Refuse the arguments that a run cannot keep exactly."""
    for refused in REFUSED:
        if refused.is_set(args):
            raise build_argument_error(refused.name, refused.means, refused.do)
    optim = str(getattr(args.optim, "value", args.optim))
    if optim in {name.value for name in FUSED_WITH_BACKWARD}:
        raise build_argument_error(
            f"optim={optim!r}",
            "it updates parameters during the backward pass, before other workers have added their gradients",
            "use another optimizer, such as optim='adamw_torch_fused'",
        )
    if args.parallel_mode is ParallelMode.NOT_DISTRIBUTED:
        raise build_argument_error(
            f"{args.n_gpu} visible GPUs in one process",
            "the Trainer would divide each batch among them with DataParallel",
            "start one worker for each GPU: elastane run --workers N script.py; or set CUDA_VISIBLE_DEVICES",
        )
    if args.parallel_mode is ParallelMode.DISTRIBUTED:
        raise build_argument_error(
            f"a process group of {args.world_size} processes",
            _OWN_DIVISION,
            "start the script with elastane run --workers N, without torchrun or accelerate launch",
        )


def check_drop_last(args: TrainingArguments, length: int) -> None:
    """Refuse to drop the end of an epoch, unless there is nothing to drop."""
    rest = length % args.train_batch_size
    if args.dataloader_drop_last and rest:
        raise build_argument_error(
            "dataloader_drop_last",
            f"{rest} samples of each epoch would never be trained on, and a run trains on each sample once",
            f"remove it, or pass a dataset of {length - rest} samples: train_dataset.select(range(...))",
        )


def check_overrides(trainer: Any, base: type) -> None:
    """Refuse a subclass that replaces the loop itself."""
    for name in ("_inner_training_loop", "_run_epoch", "get_batch_samples"):
        own = getattr(type(trainer), name)
        if own is not getattr(base, name):
            raise BadInput(
                f"{type(trainer).__name__} overrides Trainer.{name}",
                means="the run itself makes this part of the loop, so the method would never be called",
                do="override training_step, compute_loss or a callback instead",
            )


def build_argument_error(name: str, means: str, do: str) -> BadInput:
    """Return the error for an argument that a run refuses."""
    return BadInput(f"the Trainer was given {name}", means=means, do=do)


def build_resumption_error(given: str | bool, output_dir: str | Path) -> BadInput:
    """Return the error for a Trainer that gets a folder to resume from; True: its newest checkpoint."""
    found: object = given
    if given is True:
        found = get_last_checkpoint(str(output_dir)) if Path(output_dir).is_dir() else None
    if not found or not Path(str(found)).is_dir():
        missing = f"{output_dir} has no checkpoint" if given is True else f"{given} is not a folder"
        return BadInput(
            f"resume_from_checkpoint={given!r}: {missing}",
            means="there is nothing to resume from",
            do="remove resume_from_checkpoint, or correct the path",
        )
    if RunDir(Path(str(found))).ledger.is_file():
        return BadInput(
            f"resume_from_checkpoint={given!r} is the directory of a run",
            means="a run that resumes needs its ledger and its seed, too, and the command gives it both",
            do=f"elastane run --resume {found}",
        )
    return BadInput(
        f"resume_from_checkpoint={given!r} in a run that does not resume: {found}",
        means="a run counts steps and samples from its own first step, so it cannot continue in the "
        "middle of a training of transformers",
        do=f"to train on from its weights with a new schedule, use from_pretrained({str(found)!r}); "
        "to resume a run of Elastane: elastane run --resume NAME",
    )
