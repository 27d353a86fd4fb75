"""``elastane config`` and ``elastane policy``: all declared documents as one configuration."""

from collections.abc import Iterable
from typing import Annotated

import typer

from elastane.cli.command import AsJson, make_group, open_console, print_json
from elastane.cli.operators.tables import print_rows
from elastane.cli.options import argument
from elastane.cli.timestamps import localize_timestamps
from elastane.cluster.client.config_file import format_config, read_config
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.config import Change
from elastane.cluster.nouns.differences import describe_field_changes, flatten_fields, list_new_fields
from elastane.cluster.nouns.rest import Forecast

NOUNS = {
    "cohorts": "cohort",
    "teams": "team",
    "priorities": "priority",
    "engines": "engine",
    "pools": "pool",
    "egress": "egress of",
    "reservations": "reservation",
    "triggers": "trigger",
    "rules": "rules of the",
}
SIGNS = {"add": "+", "change": "~", "remove": "-"}

File = Annotated[str, argument("FILE", "A YAML file; - for stdin.")]


def print_config(as_json: AsJson = False) -> None:
    """Print the configuration of the cluster as YAML, which can be kept in git and applied."""
    with connect() as cluster:
        found = cluster.documents.config()
    if as_json:
        print_json(found)
        return
    print(format_config(found), end="")


def compare_config(file: File, as_json: AsJson = False) -> None:
    """Show the changes that elastane config apply FILE would make.

    Kinds of documents that FILE does not have stay unchanged. The exit code is 0
    without changes, 1 with changes.
    """
    wanted = read_config(file)
    with connect() as cluster:
        changes = cluster.documents.diff(wanted)
    if as_json:
        print_json(changes)
    else:
        for line in format_changes(changes) or ["nothing would change"]:
            open_console().print(line, markup=False)
    if changes:
        raise typer.Exit(1)


def apply_config(file: File, as_json: AsJson = False) -> None:
    """Make the configuration of the cluster equal to FILE, completely or not at all.

    For each kind of document in FILE, documents that FILE does not list are
    removed. Kinds that FILE does not have stay unchanged.
    """
    wanted = read_config(file)
    with connect() as cluster:
        changes = cluster.documents.apply(wanted)
    if as_json:
        print_json(changes)
        return
    for line in format_changes(changes) or ["nothing to change"]:
        open_console().print(line, markup=False)


def forecast_config(file: File, as_json: AsJson = False) -> None:
    """Show which documents and sizes of jobs FILE would change, and change nothing.

    With --json, an object with the keys documents and jobs.
    """
    wanted = read_config(file)
    with connect() as cluster:
        foreseen = cluster.documents.check(wanted)
    if as_json:
        print_json(foreseen)
        return
    print_forecast(foreseen)


def print_forecast(foreseen: Forecast) -> None:
    console = open_console()
    for line in format_changes(foreseen.documents) or ["no document would change"]:
        console.print(line, markup=False)
    if not foreseen.jobs:
        console.print("no job would change its size now")
        return
    console.print()
    print_rows(
        foreseen.jobs,
        {
            "job": lambda change: change.job,
            "team": lambda change: change.team,
            "workers": lambda change: f"{change.before} -> {change.after}",
            "reason": lambda change: localize_timestamps(" ".join(change.sentences)),
        },
        as_json=False,
        numbers=("workers",),
    )


def format_changes(changes: Iterable[Change]) -> list[str]:
    """Return one line for each document that is added, changed or removed."""
    return [_line(change) for change in changes]


def _line(change: Change) -> str:
    head = f"{SIGNS[change.change]} {NOUNS.get(change.kind, change.kind)} {change.name}"
    before, after = flatten_fields(change.before or {}), flatten_fields(change.after or {})
    match change.change:
        case "add":
            words = [f"{field} {value}" for field, value in list_new_fields(change.after or {}).items()]
        case "remove":
            words = []
        case "change":
            words = describe_field_changes(before, after)
    return f"{head}: {', '.join(words)}" if words else head


config = make_group(
    "config",
    """
Show, compare and apply the configuration: all declared documents as one YAML file.

  $ elastane config show > cluster.yaml
  $ elastane config diff cluster.yaml
  $ elastane policy check cluster.yaml   [dim]which jobs would grow or shrink[/dim]
  $ elastane config apply cluster.yaml
""",
    {"show": print_config, "diff": compare_config, "apply": apply_config},
)

policy = make_group(
    "policy", "Forecast the effect of a configuration before it is applied.", {"check": forecast_config}
)
# Typer drops the name of a group with only one command, unless the group has a callback.
policy.callback()(lambda: None)
