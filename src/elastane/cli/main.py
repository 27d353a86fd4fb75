"""The ``elastane`` command: its help page and its commands."""

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from elastane.cli.checkpoints.checkpoint import checkpoint
from elastane.cli.command import CommandGroup, print_error, wrap_command
from elastane.cli.events import events
from elastane.cli.explain import explain
from elastane.cli.jobs.amend import amend
from elastane.cli.jobs.control import cancel, pause, resume
from elastane.cli.jobs.describe import describe
from elastane.cli.jobs.listing import jobs
from elastane.cli.jobs.login import login
from elastane.cli.jobs.scale import scale
from elastane.cli.jobs.submit import Submit, submit_script
from elastane.cli.jobs.top import top
from elastane.cli.logs import logs
from elastane.cli.operators.access import audit, token
from elastane.cli.operators.calendar import calendar
from elastane.cli.operators.claims import claims
from elastane.cli.operators.config import config, policy
from elastane.cli.operators.dashboard import dashboard
from elastane.cli.operators.engine import doctor, engine
from elastane.cli.operators.kubernetes import kubernetes
from elastane.cli.operators.node import node
from elastane.cli.operators.notify import notify
from elastane.cli.operators.owners import cohort, quota, team
from elastane.cli.operators.pool import pool, trigger
from elastane.cli.operators.priority import priority
from elastane.cli.operators.tell import tell
from elastane.cli.operators.up import down, up
from elastane.cli.operators.usage import usage
from elastane.cli.options import flag, spell_with_hyphens
from elastane.cli.recipes.recipe import recipe
from elastane.cli.runs.control import drain, resize, stop
from elastane.cli.runs.join import join_run
from elastane.cli.runs.launch import LaunchCommand, launch
from elastane.cli.runs.listing import list_
from elastane.cli.runs.ps import ps
from elastane.cli.runs.results import export, report
from elastane.cli.runs.run import RunCommand, run
from elastane.cli.runs.ticket import ticket
from elastane.cli.runs.verify import verify
from elastane.cli.terminal import can_write_output, escape_other_encodings, outlive_output
from elastane.common.atomic_file import FULL_DISK
from elastane.common.errors import ElastaneError
from elastane.common.permissions import narrow_umask

HELP = """
Elastic training for PyTorch. Workers join, leave and die while a model trains.
No step is lost, and the trained bytes equal those of an undisturbed run.

A training script calls [bold]run = elastane.join()[/bold] and takes its microbatches from
[bold]run.steps(...)[/bold]. It does not know the number of workers. This command starts
the script and changes the number of workers while it trains.

[bold]Train[/bold]

  $ elastane run --workers 1:4 --start 2 --name demo train.py --lr 3e-4
  [dim]and in another terminal:[/dim]
  $ elastane resize demo 4      [dim]add two workers while the others train[/dim]
  $ elastane ps demo            [dim]list the processes; kill -9 any of them[/dim]
  $ elastane events demo -f     [dim]show each change, its reason and its cost[/dim]
  $ elastane verify demo        [dim]prove that each sample was trained on once[/dim]
  $ elastane run --resume demo  [dim]continue after a power cut[/dim]

[bold]Train without changing code[/bold]

  $ elastane recipe run llama-tiny             [dim]train a model of the hub[/dim]
  $ elastane run --contract torchrun train.py  [dim]run a script of torchrun[/dim]

[bold]Share a cluster[/bold]

  $ elastane up -d              [dim]start a controller on this machine[/dim]
  $ elastane submit train.py --workers 1:8 -- --lr 3e-4
  $ elastane top                [dim]show pools and jobs, live[/dim]
  $ elastane dashboard          [dim]show them in a browser[/dim]
"""

EPILOG = """
[bold]Exit codes[/bold]

  0    success
  1    the run or job failed, two runs differ, a proof failed, a checkpoint is
       damaged, or the cluster does not answer
  2    the command or a file is invalid, or the request cannot be met; nothing
       was changed
  3    no such run or job, or the run has ended
  130  stopped by the user

Runs are stored in $ELASTANE_HOME/runs (default: ~/.elastane/runs).
Every command has --json and --help.
"""

TRAIN, MORE = "Train a script", "More for runs"
CLUSTER, OPERATE = "Jobs of a cluster", "Operate a cluster: capacity, quotas and access"

app = typer.Typer(
    name="elastane",
    cls=CommandGroup,
    help=HELP,
    epilog=EPILOG,
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        # torchrun and accelerate launch take underscores in options too.
        "token_normalize_func": spell_with_hyphens,
    },
)


def show_version(wanted: bool) -> None:
    if wanted:
        print(version("elastane"))
        raise typer.Exit


@app.callback(help=HELP)
def elastane(
    _version: Annotated[
        bool, flag("Print the version.", "--version", callback=show_version, is_eager=True)
    ] = False,
) -> None: ...


def add_commands(panel: str, *commands: Callable[..., None]) -> None:
    for command in commands:
        app.command(command.__name__.rstrip("_"), rich_help_panel=panel)(wrap_command(command))


# All arguments after SCRIPT belong to the script, options too.
SCRIPT_LAST = {"allow_interspersed_args": False}
app.command(rich_help_panel=TRAIN, context_settings=SCRIPT_LAST, cls=RunCommand)(wrap_command(run))
add_commands(TRAIN, resize, ps, events, explain, logs, verify, report, drain, stop)
app.add_typer(checkpoint, rich_help_panel=TRAIN)
app.add_typer(recipe, rich_help_panel=TRAIN)
add_commands(MORE, list_, export)
app.command("launch", rich_help_panel=MORE, context_settings=SCRIPT_LAST, cls=LaunchCommand)(
    wrap_command(launch)
)
app.command("join", rich_help_panel=MORE)(wrap_command(join_run))
app.add_typer(ticket, rich_help_panel=MORE)
app.command("submit", rich_help_panel=CLUSTER, cls=Submit)(wrap_command(submit_script))
add_commands(CLUSTER, jobs, top, describe, scale, amend, pause, resume, cancel, login)
add_commands(OPERATE, up, down, dashboard, usage, audit, doctor)
for group in (
    engine,
    kubernetes,
    pool,
    team,
    cohort,
    quota,
    priority,
    calendar,
    trigger,
    node,
    token,
    claims,
    notify,
    config,
    policy,
    tell,
):
    app.add_typer(group, rich_help_panel=OPERATE)


def main() -> None:
    narrow_umask()
    escape_other_encodings()
    try:
        app()
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        # A file of the command may be on another disk than its output.
        is_output = error.filename is None and not can_write_output()
        outlive_output()
        place = "the output" if is_output else error.filename or "a file"
        full = ElastaneError(
            f"{place} cannot be written: {error.strerror}",
            means=f"its disk is full or broken{'; the rest was not shown' if is_output else ''}",
            do="free some of its space, or write to another disk",
        )
        print_error(full, full.exit_code, as_json=False)
        sys.exit(full.exit_code)


if __name__ == "__main__":
    main()
