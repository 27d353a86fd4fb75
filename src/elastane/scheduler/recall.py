"""How much could be taken back at most.

Sums over the grants that stand, so that who would not fit even then is refused before anything is taken back.
They may come out too large, never too small:

- What other children of a node give back all returns to the node, though part of it may be their own again.
- A job that loses its minimum loses all. Growth further up than its minimum counts as taken back in any case;
  of other jobs on several quotas all counts, with their minimums, for each node above them.
"""

from typing import NamedTuple

from elastane.scheduler.accounts import Accounts
from elastane.scheduler.claimant import Claimant, Grant


class Loans(NamedTuple):
    """Devices that may be taken back.

    Args:
        below: ``below[node][pool]``, of jobs below the node, on its quota or one further up.
        on: ``on[node][pool]``, on its quota.
    """

    below: list[list[int]]
    on: list[list[int]]


class Recall:
    """What may be taken back of all grants that stand.

    Args:
        accounts: what is used.

    Attributes:
        growth: what is taken back from anybody.
        minimums: by priority, those of jobs that are not protected, and what these lose with them.
        astride: numbers of jobs that may lose on one quota what they have because of another one.
    """

    def __init__(self, accounts: Accounts) -> None:
        self.accounts = accounts
        self.growth = self._none()
        self.minimums: dict[int, Loans] = {}
        self.astride: set[int] = set()

    def _none(self) -> Loans:
        nodes, pools = len(self.accounts.tree.names), len(self.accounts.tree.capacity)
        return Loans([[0] * pools for _ in range(nodes)], [[0] * pools for _ in range(nodes)])

    def book(self, grant: Grant, sign: int) -> None:
        """Count a grant, or with a negative sign do so no longer."""
        claimant = grant.claimant
        if sign > 0 and claimant.number not in self.astride and _astride(claimant.grants[0], grant):
            others = [one for one in claimant.grants if one is not grant]
            for one in others:
                self._count(one, -1)
            self.astride.add(claimant.number)
            for one in others:
                self._count(one, 1)
        self._count(grant, sign)

    def _count(self, grant: Grant, sign: int) -> None:
        claimant, astride = grant.claimant, grant.claimant.number in self.astride
        if grant.growth:
            _add(self.growth, grant, grant.node, sign)
        if (astride or not grant.growth) and not claimant.protected:
            if claimant.priority not in self.minimums:
                self.minimums[claimant.priority] = self._none()
            _add(self.minimums[claimant.priority], grant, claimant.path[-1] if astride else grant.node, sign)

    def most(self, claimant: Claimant, level: int, pool: int) -> list[int]:
        """The most devices of the pool that come back if the claimant takes back all it may.

        Args:
            claimant: takes growth, and minimums of lower priorities, from its own team and cohorts.
            level: place in its path of the first node from whose quota it takes nothing.
            pool: of the devices.

        Returns:
            By how much less each node of the path uses, up to that one; last, how many there are in all.
        """
        used, local = self.accounts.used, self.accounts.tree.local
        loans = [self.growth]
        loans += (lent for priority, lent in self.minimums.items() if priority < claimant.priority)
        found: list[int] = []
        passed = above = gone = 0
        for node in claimant.path[:level]:
            below, on = sum(one.below[node][pool] for one in loans), sum(one.on[node][pool] for one in loans)
            # Jobs below its child on the path give back to that first, and it passes on what it had borrowed.
            less = passed + below - above
            found.append(less)
            passed = min(less, max(0, used[node][pool] - local[node][pool]))
            above = below - on
            gone += on
        return [*found, passed, gone + above]


def _add(loans: Loans, grant: Grant, top: int, sign: int) -> None:
    """Count what is granted as if it were on the quota of ``top``."""
    claimant = grant.claimant
    for pool, workers in grant.parts:
        devices = sign * workers * claimant.devices
        loans.on[top][pool] += devices
        for node in claimant.path:
            loans.below[node][pool] += devices
            if node == top:
                break


def _astride(first: Grant, other: Grant) -> bool:
    """The claimant has a minimum on one quota, and on another one more than growth further up."""
    if first.growth or first.node == other.node:
        return False
    path = first.claimant.path
    return not other.growth or path.index(other.node) < path.index(first.node)
