"""``elastane audit``: the actions of users, allowed and refused."""

from itertools import islice
from typing import Annotated

import typer

from elastane.cli.command import AsJson, print_json
from elastane.cli.operators.tables import print_table
from elastane.cli.timestamps import format_minute
from elastane.cluster.client.context import connect


def audit(
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="At most N lines.")] = 50,
    refused: Annotated[bool, typer.Option("--refused", help="Only actions that were refused.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the actions of users, allowed and refused, newest first.

    A team-admin sees the actions in their team, an operator sees all.

    With --json, one object per line.
    """
    with connect() as cluster:
        found = list(islice((line for line in cluster.audit() if not (refused and line.allowed)), limit))
    if as_json:
        for line in found:
            print_json(line)
        return
    print_table(
        ("time", "user", "team", "action", "result", "target"),
        [
            (
                format_minute(line.time_s),
                line.user,
                line.team,
                line.action,
                "" if line.allowed else "refused" + (f" {line.times} times" if line.times > 1 else ""),
                f"{line.target}: {line.detail}" if line.detail else line.target,
            )
            for line in found
        ],
    )
