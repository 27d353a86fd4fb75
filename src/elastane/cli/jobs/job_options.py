"""The options of ``elastane submit``."""

from typing import Annotated

import typer

from elastane.cli.options import AFTER, LIMITS, NAMES, TRAINING, WORKERS
from elastane.cli.train_options import TrainOptions


class JobOptions(TrainOptions, frozen=True, kw_only=True):
    """Options as typed; None: not typed, so that the job's file or the default decides."""

    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Unique in the cluster. Default: generated.", rich_help_panel=NAMES
        ),
    ] = None
    team: Annotated[
        str | None,
        typer.Option(
            metavar="TEAM",
            help="The team whose quota the job uses. Default: that of your token.",
            rich_help_panel=NAMES,
        ),
    ] = None
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="QUEUE", help="A label to list jobs by; it decides nothing.", rich_help_panel=NAMES
        ),
    ] = None
    priority: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="The priority class, such as high.", rich_help_panel=NAMES),
    ] = None
    devices: Annotated[
        int | None, typer.Option(metavar="N", help="Devices of each worker.", rich_help_panel=WORKERS)
    ] = None
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="A kind of device the job can use, the best first; repeatable.",
            rich_help_panel=WORKERS,
        ),
    ] = None
    spot: Annotated[
        bool | None,
        typer.Option(
            "--spot/--no-spot", help="Whether to use devices that can be taken away.", rich_help_panel=WORKERS
        ),
    ] = None
    borrow: Annotated[
        bool | None,
        typer.Option(
            "--borrow/--no-borrow",
            help="Whether to use idle quota of other teams.",
            rich_help_panel=WORKERS,
        ),
    ] = None
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="When the job should be done: a duration from now (+8h), or a time.",
            rich_help_panel=LIMITS,
        ),
    ] = None
    budget: Annotated[
        float | None, typer.Option(metavar="COST", help="The most the job may cost.", rich_help_panel=LIMITS)
    ] = None
    retries: Annotated[
        int | None,
        typer.Option(metavar="N", help="Restarts after crashes. Default: 3.", rich_help_panel=LIMITS),
    ] = None
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K[=V]",
            help="A variable of the environment; without a value, that of this terminal. Repeatable.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Follow the job to its end; exit with its code.", rich_help_panel=AFTER),
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", "-n", help="Print the job as YAML; submit nothing.", rich_help_panel=AFTER),
    ] = False
