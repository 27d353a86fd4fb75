"""The options of ``elastane submit``."""

from typing import Annotated

import typer

from elastane.cli.options import AFTER, LIMITS, NAMES, TRAINING, WORKERS
from elastane.cli.train_options import WORKERS_HELP, TrainOptions


class JobOptions(TrainOptions, frozen=True, kw_only=True):
    """Options as typed; None: not typed, so the job file or the default decides."""

    workers: Annotated[
        str | None,
        typer.Option(metavar="MIN:MAX", help=f"{WORKERS_HELP} Default: 1.", rich_help_panel=WORKERS),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the job, unique in the cluster. Default: generated.",
            rich_help_panel=NAMES,
        ),
    ] = None
    team: Annotated[
        str | None,
        typer.Option(
            metavar="TEAM",
            help="Team that owns the job and provides its quota. Default: the team of your token.",
            rich_help_panel=NAMES,
        ),
    ] = None
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="QUEUE",
            help="Label for lists of jobs; the scheduler ignores it.",
            rich_help_panel=NAMES,
        ),
    ] = None
    priority: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS",
            help="Priority class, such as high. Default: the default class of the cluster.",
            rich_help_panel=NAMES,
        ),
    ] = None
    devices: Annotated[
        int | None,
        typer.Option(metavar="N", help="Devices of each worker. Default: 1.", rich_help_panel=WORKERS),
    ] = None
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Kind of device that the job can use; repeat the option, best kind first. Default: any.",
            rich_help_panel=WORKERS,
        ),
    ] = None
    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Container image of the agents, with elastane and torch. Default: that of the pool.",
            rich_help_panel=WORKERS,
        ),
    ] = None
    spot: Annotated[
        bool | None,
        typer.Option(
            "--spot/--no-spot",
            help="Whether to use spot devices, which can be taken away. Default: no.",
            rich_help_panel=WORKERS,
        ),
    ] = None
    borrow: Annotated[
        bool | None,
        typer.Option(
            "--borrow/--no-borrow",
            help="Whether to use idle quota of other teams. Default: yes.",
            rich_help_panel=WORKERS,
        ),
    ] = None
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Time by which the job should be done: a duration from now (+8h), or a time.",
            rich_help_panel=LIMITS,
        ),
    ] = None
    budget: Annotated[
        float | None,
        typer.Option(metavar="COST", help="The most that the job may cost.", rich_help_panel=LIMITS),
    ] = None
    retries: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most restarts after crashes. Default: 3.", rich_help_panel=LIMITS),
    ] = None
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K[=V]",
            help="Environment variable of the job; without a value, the one of this terminal. Repeatable.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Follow the job until it has ended.", rich_help_panel=AFTER),
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", "-n", help="Print the job as YAML and submit nothing.", rich_help_panel=AFTER
        ),
    ] = False
