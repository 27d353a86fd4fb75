"""The options that ``elastane run`` and ``elastane submit`` share."""

from typing import Annotated, Literal, TypeAlias, cast

import msgspec
import typer

from elastane.cli.options import CHECKPOINTS, CONTRACT, OUTPUT, TRAINING, WORKERS, replace_given
from elastane.common.errors import BadInput
from elastane.run.nouns.checkpoint_policy import CheckpointSettings
from elastane.run.nouns.trackers import Tracker, parse_trackers

Milestones: TypeAlias = tuple[Literal["epoch", "evaluation"], ...]
WORKERS_HELP = "Fewest and most workers; a single number sets both."


class TrainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options as typed; None: not typed, so the job file or the default decides."""

    module: Annotated[
        bool,
        typer.Option("--module", "-m", help="SCRIPT is the name of a module, as for python -m."),
    ] = False
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX",
            help=WORKERS_HELP,
            rich_help_panel=WORKERS,
        ),
    ] = None
    ship_code: Annotated[
        bool,
        typer.Option(
            "--ship-code",
            help="Copy the files of the working directory into the run directory, and train from the copy on "
            "every machine. Left out: what .elastaneignore or else .gitignore of each folder names.",
            rich_help_panel=WORKERS,
        ),
    ] = False
    contract: Annotated[
        Literal["torchrun"] | None,
        typer.Option(
            metavar="torchrun",
            help="SCRIPT is an unmodified script for torchrun, with its own snapshots. A resize or a death "
            "restarts its processes: each gets SIGTERM, and time to save. Options of torchrun that change "
            "nothing here are accepted, such as --standalone, --nnodes 1 and --rdzv-backend.",
            rich_help_panel=CONTRACT,
        ),
    ] = None
    nproc_per_node: Annotated[
        str | None,
        typer.Option(
            metavar="N|gpu|cpu|auto",
            help="Processes of each worker, so WORLD_SIZE is N times the number of workers. gpu: the GPUs of "
            "this machine; cpu: its cores; auto: its GPUs or, without any, its cores. Default: 1.",
            rich_help_panel=CONTRACT,
        ),
    ] = None
    max_restarts: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Restarts after failures of the script; a resize or a killed process does not count. "
            "Default: 0.",
            rich_help_panel=CONTRACT,
        ),
    ] = None
    stall_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="A script of which no process prints anything for this long has failed. Default: never.",
            rich_help_panel=CONTRACT,
        ),
    ] = None
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time to save after SIGTERM, before SIGKILL. Default: 30s.",
            rich_help_panel=CONTRACT,
        ),
    ] = None
    copies: Annotated[
        str | None,
        typer.Option(
            metavar="all|N",
            help="Workers that keep each piece of the optimizer state. With N copies, N-1 workers may die at "
            "once. Default: all.",
            rich_help_panel=WORKERS,
        ),
    ] = None
    virtual_ranks: Annotated[
        int | None,
        typer.Option(
            metavar="V",
            help="Number of fixed pieces of each global batch. Default: global batch / microbatch.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    convergence: Annotated[
        Literal["exact", "fast"] | None,
        typer.Option(
            metavar="exact|fast",
            help="exact (default): the same bits for any number of workers. fast: gradients are summed in "
            "the cheapest order.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    numerics: Annotated[
        Literal["native", "portable"] | None,
        typer.Option(
            metavar="native|portable",
            help="native (default): use all instructions of the CPU. portable: only those that other models "
            "have too, so that workers on them compute the same bits; slower.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Seed of the sample order, dropout and initial weights. Default: 0.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Threads that each worker computes with. Default: 1.", rich_help_panel=TRAINING
        ),
    ] = None
    checkpoint_every: Annotated[
        str | None,
        typer.Option(
            metavar="INTERVAL",
            help='A duration (10min), a number of steps ("500 steps"), auto or never. Default: auto, which '
            "follows the cost of a checkpoint and the failure rate, and spends at most 1 % of the time.",
            rich_help_panel=CHECKPOINTS,
        ),
    ] = None
    checkpoint_at: Annotated[
        str | None,
        typer.Option(
            metavar="epoch|evaluation",
            help="Also write a checkpoint after each epoch or evaluation; for both, write epoch,evaluation.",
            rich_help_panel=CHECKPOINTS,
        ),
    ] = None
    checkpoint_dir: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Directory for checkpoints, or a URL such as s3://bucket/path. Default: checkpoints/ in the "
            "run directory.",
            rich_help_panel=CHECKPOINTS,
        ),
    ] = None
    keep_last: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Keep the newest N checkpoints. Default: 2.", rich_help_panel=CHECKPOINTS
        ),
    ] = None
    keep_every: Annotated[
        int | None,
        typer.Option(
            metavar="K", help="Also keep the checkpoints of every K-th step.", rich_help_panel=CHECKPOINTS
        ),
    ] = None
    keep_best: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC:min|max",
            help="Also keep the best checkpoint by a metric, such as eval_loss:min.",
            rich_help_panel=CHECKPOINTS,
        ),
    ] = None
    log: Annotated[
        str | None,
        typer.Option(
            metavar="TRACKERS",
            help="Feed the metrics of each step to tensorboard, mlflow or wandb; separate several by commas. "
            "Default: none.",
            rich_help_panel=OUTPUT,
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
