"""The options that ``elastane run`` and ``elastane submit`` share."""

from typing import Annotated, Literal, TypeAlias, cast

import msgspec

from elastane.cli.options import CHECKPOINTS, CONTRACT, OUTPUT, TRAINING, WORKERS, flag, option, replace_given
from elastane.common.errors import BadInput
from elastane.run.nouns.checkpoint_policy import CheckpointSettings
from elastane.run.nouns.trackers import Tracker, parse_trackers

Milestones: TypeAlias = tuple[Literal["epoch", "evaluation"], ...]
WORKERS_HELP = "Fewest and most workers; a single number sets both."


class TrainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options as typed; None: not typed, so the job file or the default decides."""

    module: Annotated[bool, flag("SCRIPT is the name of a module, as for python -m.", "--module", "-m")] = (
        False
    )
    workers: Annotated[str | None, option("MIN:MAX", WORKERS_HELP, panel=WORKERS)] = None
    processes: Annotated[
        int | None,
        option(
            "P",
            "Processes of each worker, 2, 4, 8 or another power of two. They divide the model by "
            "fully_shard, with the variables of torchrun; the world of torch.distributed is the worker. "
            "Default: 1.",
            panel=WORKERS,
        ),
    ] = None
    ship_code: Annotated[
        bool,
        flag(
            "Copy the files of the working directory into the run directory, and train from the copy on "
            "every machine. Left out: what .elastaneignore or else .gitignore of each folder names.",
            "--ship-code",
            panel=WORKERS,
        ),
    ] = False
    contract: Annotated[
        Literal["torchrun"] | None,
        option(
            "torchrun",
            "SCRIPT is an unmodified script for torchrun, with its own snapshots. A resize or a death "
            "restarts its processes: each gets SIGTERM, and time to save. Options of torchrun that change "
            "nothing here are accepted, such as --standalone, --nnodes 1 and --rdzv-backend.",
            panel=CONTRACT,
        ),
    ] = None
    nproc_per_node: Annotated[
        str | None,
        option(
            "N|gpu|cpu|auto",
            "Processes of each worker, so WORLD_SIZE is N times the number of workers. gpu: the GPUs of this "
            "machine; cpu: its cores; auto: its GPUs or, without any, its cores. Default: 1.",
            panel=CONTRACT,
        ),
    ] = None
    max_restarts: Annotated[
        int | None,
        option(
            "N",
            "Restarts after failures of the script; a resize or a killed process does not count. Default: 0.",
            panel=CONTRACT,
        ),
    ] = None
    stall_timeout: Annotated[
        str | None,
        option(
            "TIME",
            "A script of which no process prints anything for this long has failed. Default: never.",
            panel=CONTRACT,
        ),
    ] = None
    grace: Annotated[
        str | None,
        option("TIME", "Time to save after SIGTERM, before SIGKILL. Default: 30s.", panel=CONTRACT),
    ] = None
    copies: Annotated[
        str | None,
        option(
            "all|N",
            "Workers that keep each piece of the optimizer state. With N copies, N-1 workers may die at "
            "once. Default: all.",
            panel=WORKERS,
        ),
    ] = None
    virtual_ranks: Annotated[
        int | None,
        option(
            "V",
            "Number of fixed pieces of each global batch. Default: global batch / microbatch.",
            panel=TRAINING,
        ),
    ] = None
    convergence: Annotated[
        Literal["exact", "fast"] | None,
        option(
            "exact|fast",
            "exact (default): the same bits for any number of workers. fast: gradients are summed in the "
            "cheapest order.",
            panel=TRAINING,
        ),
    ] = None
    numerics: Annotated[
        Literal["native", "portable"] | None,
        option(
            "native|portable",
            "native (default): use all instructions of the CPU. portable: only those that other models have "
            "too, so that workers on them compute the same bits; slower.",
            panel=TRAINING,
        ),
    ] = None
    seed: Annotated[
        int | None,
        option("N", "Seed of the sample order, dropout and initial weights. Default: 0.", panel=TRAINING),
    ] = None
    threads: Annotated[
        int | None, option("N", "Threads that each worker computes with. Default: 1.", panel=TRAINING)
    ] = None
    checkpoint_every: Annotated[
        str | None,
        option(
            "INTERVAL",
            'A duration (10min), a number of steps ("500 steps"), auto or never. Default: auto, which '
            "follows the cost of a checkpoint and the failure rate, and spends at most 1 % of the time.",
            panel=CHECKPOINTS,
        ),
    ] = None
    checkpoint_at: Annotated[
        str | None,
        option(
            "epoch|evaluation",
            "Also write a checkpoint after each epoch or evaluation; for both, write epoch,evaluation.",
            panel=CHECKPOINTS,
        ),
    ] = None
    checkpoint_dir: Annotated[
        str | None,
        option(
            "URL",
            "Directory for checkpoints, or a URL such as s3://bucket/path. Default: checkpoints/ in the run "
            "directory.",
            panel=CHECKPOINTS,
        ),
    ] = None
    keep_last: Annotated[
        int | None, option("N", "Keep the newest N checkpoints. Default: 2.", panel=CHECKPOINTS)
    ] = None
    keep_every: Annotated[
        int | None, option("K", "Also keep the checkpoints of every K-th step.", panel=CHECKPOINTS)
    ] = None
    keep_best: Annotated[
        str | None,
        option(
            "METRIC:min|max",
            "Also keep the best checkpoint by a metric, such as eval_loss:min.",
            panel=CHECKPOINTS,
        ),
    ] = None
    log: Annotated[
        str | None,
        option(
            "TRACKERS",
            "Feed the metrics of each step to tensorboard, mlflow or wandb; separate several by commas. "
            "Default: none.",
            panel=OUTPUT,
        ),
    ] = None


def change_checkpoints(before: CheckpointSettings, options: TrainOptions) -> CheckpointSettings:
    """Return the settings, changed by the options that the user typed."""
    at = options.checkpoint_at
    return replace_given(
        before,
        every=options.checkpoint_every,
        at=None if at is None else parse_milestones(at),
        url=options.checkpoint_dir,
        keep_last=options.keep_last,
        keep_every=options.keep_every,
        keep_best=options.keep_best,
    )


def read_trackers(options: TrainOptions) -> tuple[Tracker, ...] | None:
    """Return the trackers of ``--log``; None: the option was not typed."""
    return None if options.log is None else parse_trackers(options.log, "--log")


def parse_milestones(text: str) -> Milestones:
    """Return the sorted milestones of a text such as ``epoch,evaluation``."""
    words = sorted({word.strip() for word in text.split(",") if word.strip()})
    if not set(words) <= {"epoch", "evaluation"}:
        raise BadInput(f"invalid --checkpoint-at: {text!r}", do="write epoch, evaluation or epoch,evaluation")
    return cast(Milestones, tuple(words))
