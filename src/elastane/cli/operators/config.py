"""``elastane config`` and ``elastane policy``: all declared documents as one configuration."""

from typing import Annotated

import typer

from elastane.api.rest import Forecast
from elastane.cli.command import AsJson, open_console, print_json, wrap_command
from elastane.cli.operators.config_file import format_config, read_config
from elastane.cli.operators.declarations import make_group
from elastane.cli.operators.differences import format_changes
from elastane.cli.operators.tables import print_table
from elastane.cli.timestamps import localize_timestamps
from elastane.client.context import connect

File = Annotated[str, typer.Argument(metavar="FILE", help="YAML; - for stdin.", show_default=False)]


def show(as_json: AsJson = False) -> None:
    """Print the configuration of the cluster as YAML, to keep in git and apply."""
    with connect() as cluster:
        found = cluster.config()
    if as_json:
        print_json(found)
        return
    print(format_config(found), end="")


def diff(file: File, as_json: AsJson = False) -> None:
    """Show the changes that applying FILE would make.

    Kinds of documents that FILE leaves out stay. The exit code is 0 without
    changes, 1 with changes.
    """
    wanted = read_config(file)
    with connect() as cluster:
        changes = cluster.diff(wanted)
    if as_json:
        print_json(changes)
    else:
        for line in format_changes(changes) or ["nothing would change"]:
            open_console().print(line, markup=False)
    if changes:
        raise typer.Exit(1)


def apply(file: File, as_json: AsJson = False) -> None:
    """Make the configuration of the cluster equal to FILE, completely or not at all.

    For each kind of document in FILE, documents that are not listed are removed.
    Kinds that FILE leaves out stay.
    """
    wanted = read_config(file)
    with connect() as cluster:
        changes = cluster.apply(wanted)
    if as_json:
        print_json(changes)
        return
    for line in format_changes(changes) or ["nothing to change"]:
        open_console().print(line, markup=False)


def check(file: File, as_json: AsJson = False) -> None:
    """Show which documents and sizes of jobs FILE would change; change nothing.

    With --json, an object with the keys documents and jobs.
    """
    wanted = read_config(file)
    with connect() as cluster:
        foreseen = cluster.check_policy(wanted)
    if as_json:
        print_json(foreseen)
        return
    print_forecast(foreseen)


def print_forecast(foreseen: Forecast) -> None:
    console = open_console()
    for line in format_changes(foreseen.documents) or ["nothing that is declared would change"]:
        console.print(line, markup=False)
    if not foreseen.jobs:
        console.print("no job would have another size now")
        return
    console.print()
    print_table(
        ("job", "team", "workers", "because"),
        [
            (one.job, one.team, f"{one.before} -> {one.after}", localize_timestamps(" ".join(one.sentences)))
            for one in foreseen.jobs
        ],
        numbers=("workers",),
    )


config = make_group(
    "config",
    """
Everything that is declared, as YAML that can be kept in git.

  $ elastane config show > cluster.yaml
  $ elastane config diff cluster.yaml
  $ elastane policy check cluster.yaml   [dim]which jobs would grow or shrink[/dim]
  $ elastane config apply cluster.yaml
""",
)
config.command("show")(wrap_command(show))
config.command("diff")(wrap_command(diff))
config.command("apply")(wrap_command(apply))

policy = make_group("policy", "What another configuration would do, before it does.")
policy.command("check")(wrap_command(check))
# Typer drops the name of a group with only one command, unless the group has a callback.
policy.callback()(lambda: None)
