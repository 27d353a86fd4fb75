"""Checks that a removed declaration is not in use, and that no pool in use changes its engine.

In use are documents that other documents name, pools with jobs, priority classes that jobs name, and teams
with jobs or tokens.
"""

from collections.abc import Iterable
from http import HTTPStatus

from sqlalchemy import Connection

from elastane.cluster.controller.cluster.declarations import Kind, list_mentions
from elastane.cluster.controller.rest.problems import Refusal
from elastane.cluster.controller.store import jobs, tokens
from elastane.cluster.nouns.config import Change, Config

SHOWN = 5
"""Number of users that a message names."""


def check_mentions(standing: Config, kind: Kind, name: str) -> None:
    """Check that no other document names this one, which is to be removed alone."""
    users = list_mentions(standing, kind, name)
    if users and kind == "cohorts":
        raise _refuse(
            f"cohort {name} is in use by {_list_users(users)}",
            means="they would have no place in the tree of quotas",
            do="move them (elastane team set TEAM --cohort OTHER, elastane cohort set COHORT --parent OTHER; "
            "'' is the cluster), or remove them first",
        )
    if users and kind == "engines":
        raise _refuse(
            f"engine {name} is in use by {_list_users(users)}",
            means="they would name an engine that does not exist",
            do="give them another one (elastane pool set POOL --engine OTHER; '' is the machine of the "
            "controller), or remove them first",
        )
    if users:
        raise _refuse(
            f"pool {name} is in use by {_list_users(users)}",
            means="they would name a pool that does not exist",
            do=f"remove them first, for example: elastane quota remove OWNER --pool {name}",
        )


def check_unused(tx: Connection, changes: Iterable[Change], now_s: float) -> None:
    """Check that no job and no token uses the documents that these changes remove or move to another engine.

    The message names jobs and tokens of all teams: callers that may declare may see them all.
    """
    for change in changes:
        if change.kind == "pools" and change.change == "change":
            _check_engine_change(tx, change)
        if change.change != "remove":
            continue
        if change.kind == "pools" and (holders := jobs.list_jobs_in_pool(tx, change.name)):
            raise _refuse(
                f"pool {change.name} is in use by {_list_users(holders, 'job')}",
                means="their workers could not drain from a pool that does not exist",
                do="drain its nodes (elastane node drain NODE) until the jobs have left, or cancel them",
            )
        if change.kind == "priorities":
            _check_class(tx, change)
        if change.kind == "teams":
            _check_team(tx, change.name, now_s)


def _check_engine_change(tx: Connection, change: Change) -> None:
    """Check that a pool with jobs keeps its engine."""
    if change.before is None or change.after is None or change.before["engine"] == change.after["engine"]:
        return
    if holders := jobs.list_jobs_in_pool(tx, change.name):
        raise _refuse(
            f"pool {change.name} is in use by {_list_users(holders, 'job')}, so it keeps its engine",
            means="their workers cannot move to another engine",
            do="declare another pool for the engine, or wait until the jobs have left this one",
        )


def _check_class(tx: Connection, removed: Change) -> None:
    """Check that no job is of the class: by its name, or by default."""
    users = jobs.list_jobs_of_class(tx, removed.name)
    if removed.before is not None and removed.before.get("default"):
        users += jobs.list_jobs_of_class(tx, "")
    if users:
        raise _refuse(
            f"priority class {removed.name} is in use by {_list_users(users, 'job')}",
            means="a job of a class that does not exist could not be changed any more, and a job without a "
            "class would get another priority",
            do="give them another class (elastane amend JOB --priority CLASS), or wait until they end",
        )


def _check_team(tx: Connection, team: str, now_s: float) -> None:
    """Check that the team has no living jobs and no valid tokens."""
    if users := jobs.list_jobs_of_team(tx, team):
        raise _refuse(
            f"team {team} is in use by {_list_users(users, 'job')}",
            means="they would lose their quota, and jobs that may not borrow would stop",
            do="cancel them, or wait until they end; to remove only a quota of the team: "
            f"elastane quota remove {team} --pool POOL",
        )
    if keys := tokens.list_team_tokens(tx, team, now_s):
        raise _refuse(
            f"team {team} is in use by {_list_users(keys, 'token')}",
            means="these tokens could still submit jobs for a team that does not exist",
            do="revoke them (elastane token revoke TOKEN); elastane token list shows their users",
        )


def _list_users(names: tuple[str, ...], noun: str = "") -> str:
    """List users, and their noun in front of them if they have one: ``jobs a, b and 3 more``."""
    more = len(names) - SHOWN
    shown = ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
    nouns = noun if len(names) == 1 else f"{noun}s"
    return f"{nouns} {shown}" if noun else shown


def _refuse(what: str, *, means: str, do: str) -> Refusal:
    return Refusal(HTTPStatus.CONFLICT, what, means=f"{means}; nothing was changed", do=do)
