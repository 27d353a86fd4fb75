"""What operators may not take away: pools that jobs hold devices of."""

from collections.abc import Iterable
from http import HTTPStatus

from sqlalchemy import Connection

from elastane.api.wire import Change
from elastane.controller.api.problems import Refusal
from elastane.controller.store import jobs

SHOWN = 5
"""Of the jobs that are in the way."""


def check_removals(tx: Connection, changes: Iterable[Change]) -> None:
    """Goes on if no job stands on what these changes remove.

    Jobs are named, whosever they are: who may declare may see them all.

    Raises:
        Refusal: one does.
    """
    for one in changes:
        if one.change != "remove":
            continue
        if one.kind == "pools" and (holders := jobs.in_pool(tx, one.name)):
            raise Refusal(
                HTTPStatus.CONFLICT,
                f"pool {one.name} is in use: {_listed(holders)} in it",
                means="without a pool their workers could not drain from it; nothing was changed",
                do="drain its nodes (elastane node drain NODE) until the jobs have left, or cancel them",
            )


def _listed(names: tuple[str, ...]) -> str:
    """Who is in the way: ``a, b and 3 more are``."""
    more = len(names) - SHOWN
    shown = ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"
