"""A warning about a team that is not declared."""

from collections.abc import Iterable
from difflib import get_close_matches

from elastane.cluster.nouns.config import Team


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
