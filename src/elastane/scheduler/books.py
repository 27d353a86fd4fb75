"""Who is entitled to what so far: grants, on whose quota, and how to take one back."""

from elastane.scheduler.accounts import Accounts, Path
from elastane.scheduler.claimant import Claimant, Grant

Parts = tuple[tuple[int, int], ...]
"""``(pool, workers)``; a pool may come twice."""


class Books:
    """Grants on top of `Accounts`.

    Args:
        accounts: what is used; changed by every grant.
    """

    def __init__(self, accounts: Accounts) -> None:
        self.accounts = accounts
        self.on_quota: dict[int, list[Grant]] = {}
        self.rank = 0

    def parts(self, claimant: Claimant, workers: int, level: int, *, growth: bool = False) -> Parts | None:
        """Where so many more workers fit on the quota of ``path[level]``; None if they do not.

        Workers stay where they are as far as they can.
        """
        for group in claimant.groups:
            order = group.for_growth if growth else group.for_minimum
            parts, left = self._parts(claimant, workers, level, order)
            if not left:
                return parts
        return None

    def as_many(self, claimant: Claimant, workers: int, level: int) -> Parts:
        """Up to so many, in the group that has room for most."""
        found = [self._parts(claimant, workers, level, group.for_minimum) for group in claimant.groups]
        return min(found, key=lambda one: one[1])[0]

    def _parts(
        self, claimant: Claimant, workers: int, level: int, order: tuple[int, ...]
    ) -> tuple[Parts, int]:
        accounts, devices, given = self.accounts, claimant.devices, claimant.given
        parts: list[tuple[int, int]] = []
        left = workers
        taken: dict[int, int] = {}
        for pool, held in claimant.held.items():
            stay = min(left, held - given.get(pool, 0))
            if stay > 0 and pool in order:
                room = min(accounts.room(claimant.path, level, pool), accounts.free[pool])
                stay = min(stay, int(room // devices))
                if stay > 0:
                    parts.append((pool, stay))
                    taken[pool] = stay * devices
                    left -= stay
                    if not left:
                        return tuple(parts), 0
        for pool in order:
            room = min(accounts.growable[pool], accounts.free[pool])
            if room < devices:
                continue
            room = min(room, accounts.room(claimant.path, level, pool)) - taken.get(pool, 0)
            new = min(left, int(room // devices))
            if new > 0:
                parts.append((pool, new))
                left -= new
                if not left:
                    break
        return tuple(parts), left

    def grant(self, claimant: Claimant, node: int, parts: Parts, *, growth: bool) -> Grant:
        """From now on the claimant is entitled to these workers, too."""
        grant = Grant(claimant, node, parts, growth, self.rank)
        self.rank += 1
        self.on_quota.setdefault(node, []).append(grant)
        claimant.grants.append(grant)
        self._book(grant, 1)
        return grant

    def take_back(self, grant: Grant) -> None:
        """As if it had never been given."""
        grant.taken_back = True
        grant.claimant.grants.remove(grant)
        self._book(grant, -1)

    def restore(self, grant: Grant) -> None:
        """As if it had never been taken back."""
        grant.taken_back = False
        grant.claimant.grants.append(grant)
        self._book(grant, 1)

    def standing(self, node: int) -> list[Grant]:
        """What is given on the quota of a node, in order of right."""
        found = [grant for grant in self.on_quota.get(node, ()) if not grant.taken_back]
        self.on_quota[node] = found
        return list(found)

    def charge(self, path: Path, parts: Parts, devices: int) -> None:
        """Reserve, or with negative devices release, room without granting it to anybody."""
        for pool, workers in parts:
            self.accounts.charge(path, pool, workers * devices)

    def _book(self, grant: Grant, sign: int) -> None:
        claimant = grant.claimant
        for pool, workers in grant.parts:
            self.accounts.charge(claimant.path, pool, sign * workers * claimant.devices)
            claimant.given[pool] = claimant.given.get(pool, 0) + sign * workers
            claimant.entitled += sign * workers
