"""The team that a user works for, and a warning about a team that is not declared."""

from collections.abc import Iterable
from difflib import get_close_matches

from elastane.cluster.client.context import connect
from elastane.cluster.nouns.config import Team
from elastane.cluster.nouns.rest import Me
from elastane.common.connections.controller_context import Context

EVERY_TEAM = "*"
DEFAULT_TEAM = "default"


def find_own_team(me: Me) -> str:
    """Return the only team that a token belongs to; empty if it belongs to every team or to none."""
    return "" if me.team == EVERY_TEAM else me.team


def find_team_of(context: Context) -> str:
    """Return the team of a token, as `elastane login` has saved it or the controller knows it."""
    if context.team:
        return context.team
    with connect(context) as cluster:
        return find_own_team(cluster.me()) or DEFAULT_TEAM


def warn_undeclared_team(team: str, teams: Iterable[Team]) -> str:
    """Return a warning about a team that is not declared; empty if it is declared.

    The warning is empty too if the cluster has no declared team at all: then no team owns devices; and for no
    team (empty) and every team (``*``). ``teams`` are the declared teams that the token may see.
    """
    known = [declared.name for declared in teams]
    if not known or team in {"", "*", *known}:
        return ""
    near = get_close_matches(team, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "elastane team list shows the declared teams"
    return f"team {team} is not declared: it owns no devices, and its jobs only borrow idle ones; {hint}"
