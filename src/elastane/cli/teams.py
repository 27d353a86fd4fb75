"""Teams that somebody names and nobody has declared."""

from collections.abc import Iterable
from difflib import get_close_matches

from elastane.api.quotas import Team


def warn_undeclared_team(team: str, teams: Iterable[Team]) -> str:
    """What it means that nobody has declared a team; empty: somebody has.

    Where no team is declared at all, nobody owns anything, and there is nothing to say.

    Args:
        team: as it was named; empty or ``*``: none, or every one.
        teams: that are declared, as far as the token may see.
    """
    known = [one.name for one in teams]
    if not known or team in {"", "*", *known}:
        return ""
    near = get_close_matches(team, known, n=1)
    meant = f"did you mean {near[0]}?" if near else "elastane team list shows those that are"
    return f"no team {team} is declared: it owns nothing, and its jobs borrow what others leave; {meant}"
