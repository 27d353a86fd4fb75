"""The names that become label values, of which there is a limited number."""

MOST_TEAMS = 50
MOST_POOLS = 15
OTHERS = "_others"
"""Label of all further teams, or pools. No team and no pool can have this name."""


class BoundedNames:
    """The teams and the pools with labels of their own: the first ones; all later ones share `OTHERS`.

    A name that has a label keeps it, so that no counter goes back. Thread-safe only for readers.
    """

    def __init__(self) -> None:
        self._teams: set[str] = set()
        self._pools: set[str] = set()

    def bound_team(self, name: str) -> str:
        """Return the label of a team."""
        return _bound(name, self._teams, MOST_TEAMS)

    def bound_pool(self, name: str) -> str:
        """Return the label of a pool."""
        return _bound(name, self._pools, MOST_POOLS)


def _bound(name: str, known: set[str], most: int) -> str:
    if name not in known:
        if len(known) >= most:
            return OTHERS
        known.add(name)
    return name
