"""The team for which the user of this command works."""

from elastane.cluster.client.context import connect
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
