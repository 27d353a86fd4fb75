"""The options of ``elastane run``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from elastane.cli.completion import complete_runs
from elastane.cli.options import OUTPUT, RESUME, WORKERS
from elastane.cli.train_options import TrainOptions


class RunOptions(TrainOptions, frozen=True, kw_only=True):
    """Options as typed; None: not typed."""

    start: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Workers to begin with; then only you change their number. Default: MIN, and the run grows "
            "into idle devices of this machine while that is worth it.",
            rich_help_panel=WORKERS,
        ),
    ] = None
    transport: Annotated[
        Literal["shared", "tcp"] | None,
        typer.Option(
            metavar="shared|tcp",
            help="How gradients travel: shared memory (default), or TCP connections between the workers.",
            rich_help_panel=WORKERS,
        ),
    ] = None
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            autocompletion=complete_runs,
            help="Resume RUN, which has no process left, from its newest valid checkpoint. Takes no "
            "SCRIPT, and only options about workers and checkpoints.",
            rich_help_panel=RESUME,
        ),
    ] = None
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Resume although the script or the software has changed; the bytes may then differ.",
            rich_help_panel=RESUME,
        ),
    ] = False
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How other terminals name the run. Default: generated.",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    run_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The directory of the run. Default: $ELASTANE_HOME/runs/NAME.",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    digest_every: Annotated[
        int | None,
        typer.Option(
            metavar="K", help="Steps between two digests in the ledger. Default: 50.", rich_help_panel=OUTPUT
        ),
    ] = None
    save_optimizer: Annotated[
        bool,
        typer.Option(
            "--save-optimizer",
            help="Write the optimizer state beside the finished model.",
            rich_help_panel=OUTPUT,
        ),
    ] = False
    max_shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Write a model with more bytes of weights in shards. Default: 5GB.",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            help="Run one worker with this terminal: breakpoint() works. The worker never counts as "
            "hung, and is not replaced when it ends.",
            rich_help_panel=OUTPUT,
        ),
    ] = False


PINNED = (
    "module",
    "virtual_ranks",
    "convergence",
    "seed",
    "threads",
    "name",
    "run_dir",
    "digest_every",
    "save_optimizer",
    "max_shard_size",
)
"""Options that a run keeps from its first step to its last."""
