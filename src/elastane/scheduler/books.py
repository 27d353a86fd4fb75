"""Who is entitled to what so far: grants, on whose quota, and how to take one back."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter, itemgetter
from typing import NamedTuple

from elastane.scheduler.accounts import Accounts, Path
from elastane.scheduler.claimant import Claimant, Grant
from elastane.scheduler.eligibility import Group
from elastane.scheduler.recall import Recall

Parts = tuple[tuple[int, int], ...]
"""``(pool, workers)``; a pool may come twice."""

Find = Callable[[Claimant, int, int], Parts | None]
"""Where so many workers of a claimant fit on the quota of one level; None: they do not."""

_rank = attrgetter("rank")


class Hold(NamedTuple):
    """What was kept for some from others who would have started.

    Args:
        node: on whose quota.
        holders: who wait and have lost patience.
        refused: who were not served there.
    """

    node: int
    holders: list[Claimant]
    refused: list[Claimant]


class Books:
    """Grants on top of `Accounts`.

    Args:
        accounts: what is used; changed by every grant.
        pools: names of the pools, for reasons.

    Attributes:
        holds: what was kept, and from whom.
        returned: grants taken back for good.
        asked_again: the node at whose turn others below it hand out what they own once more; None: it is not.
    """

    def __init__(self, accounts: Accounts, pools: tuple[str, ...]) -> None:
        self.accounts, self.pools, self.recall = accounts, pools, Recall(accounts)
        self.on_quota: dict[int, list[Grant]] = {}
        self.gone: dict[int, int] = {}
        self.holds: list[Hold] = []
        self.returned = 0
        self.rank = 0
        self.asked_again: int | None = None

    def parts(self, claimant: Claimant, workers: int, level: int) -> Parts | None:
        """Where so many workers fit on the quota of ``path[level]``; None if they do not.

        Workers stay where they are as far as they can.
        """
        for group in groups_of(claimant):
            kept, left = self.kept(claimant, workers, level, group)
            new, left = self.new(claimant, left, level, group.for_minimum, kept)
            if not left:
                return kept + new
        return None

    def in_place(self, claimant: Claimant, workers: int, level: int) -> Parts | None:
        """As `parts`, where it is already."""
        parts = self.places(claimant, workers, level)
        return parts if sum(count for _, count in parts) == workers else None

    def may_fit(self, claimant: Claimant, workers: int, level: int, find: Find) -> bool:
        """Whether ``find`` might find places once all was taken back that the claimant may take back below.

        False is certain, and costs the same however much that is; True takes trying.
        """
        pools = {pool for group in groups_of(claimant) for pool in group.for_minimum}
        most = {pool: self.recall.most(claimant, level, pool) for pool in pools}
        for pool, devices in most.items():
            self.accounts.relieve(claimant.path, pool, devices)
        fits = find(claimant, workers, level) is not None
        for pool, devices in most.items():
            self.accounts.relieve(claimant.path, pool, [-one for one in devices])
        return fits

    def growth(self, claimant: Claimant, workers: int, level: int, *, held: bool) -> Parts | None:
        """Where so many more fit beside its minimum: if ``held`` only in places it has, else in new ones."""
        group = _group_of(claimant)
        if held:
            parts, left = self.kept(claimant, workers, level, group)
        else:
            parts, left = self.kept(claimant, workers, level, group) if claimant.lost else ((), workers)
            # Where it has workers that may yet be granted, what is given anew would be these.
            order = tuple(
                pool
                for pool in group.for_growth
                if claimant.lost or claimant.held.get(pool, 0) <= claimant.given.get(pool, 0)
            )
            new, left = self.new(claimant, left, level, order, parts)
            parts += new
        return None if left else parts

    def places(self, claimant: Claimant, workers: int, level: int) -> Parts:
        """Up to so many of the places it has."""
        return self.kept(claimant, workers, level, groups_of(claimant)[0])[0]

    def as_many(self, claimant: Claimant, workers: int, level: int) -> Parts:
        """Up to so many new ones, in the group that has room for most."""
        found = [self.new(claimant, workers, level, group.for_minimum, ()) for group in groups_of(claimant)]
        return min(found, key=lambda one: one[1])[0]

    def kept(self, claimant: Claimant, workers: int, level: int, group: Group) -> tuple[Parts, int]:
        """Up to so many where the claimant has them already, and how many are left to place."""
        accounts, devices, given = self.accounts, claimant.devices, claimant.given
        parts: list[tuple[int, int]] = []
        for pool, held in claimant.held.items():
            stay = min(workers, held - given.get(pool, 0))
            if stay > 0 and pool in group.for_minimum:
                room = min(self.limit(claimant, level, pool)[0], accounts.free[pool])
                stay = min(stay, int(room // devices))
                if stay > 0:
                    parts.append((pool, stay))
                    workers -= stay
        return tuple(parts), workers

    def new(
        self, claimant: Claimant, workers: int, level: int, order: tuple[int, ...], beside: Parts
    ) -> tuple[Parts, int]:
        """Up to so many in new places, ``beside`` what is about to be taken; and how many are left over."""
        accounts, devices = self.accounts, claimant.devices
        taken = dict(beside)
        parts: list[tuple[int, int]] = []
        for pool in order:
            if not workers:
                break
            room: float = min(accounts.growable[pool], accounts.free[pool])
            if room >= devices:
                room = min(room, self.limit(claimant, level, pool)[0])
                more = min(workers, int(room // devices) - taken.get(pool, 0))
                if more > 0:
                    parts.append((pool, more))
                    workers -= more
        return tuple(parts), workers

    def limit(self, claimant: Claimant, level: int, pool: int) -> tuple[float, int]:
        """Devices it may still get on the quota of ``path[level]``, and the node that sets the limit."""
        accounts, path = self.accounts, claimant.path
        found = accounts.limit(path, level, pool)
        if self.asked_again is None:
            return found
        # Of what a node owns, others may have borrowed a part since it was handed out for the first time.
        return min(found, accounts.limit(path, path.index(self.asked_again), pool), key=itemgetter(0))

    @contextmanager
    def again(self, node: int) -> Iterator[None]:
        """What nodes below this one own is handed out once more, beside what it has handed out itself."""
        before = self.asked_again
        if before is None:
            self.asked_again = node
        try:
            yield
        finally:
            self.asked_again = before

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
        self.returned += 1
        self.gone[grant.node] = self.gone.get(grant.node, 0) + 1
        grants = grant.claimant.grants
        del grants[bisect_left(grants, grant.rank, key=_rank)]
        self._book(grant, -1)

    def restore(self, grant: Grant) -> None:
        """As if it had never been taken back."""
        grant.taken_back = False
        self.returned -= 1
        self.gone[grant.node] -= 1
        insort(grant.claimant.grants, grant, key=_rank)
        self._book(grant, 1)

    def latest(self, nodes: Sequence[int]) -> Iterator[Grant]:
        """What is given on the quotas of these nodes, one after the other, the last in right first."""
        for node in nodes:
            yield from (grant for grant in reversed(self.on_quota.get(node, ())) if not grant.taken_back)

    def forget(self, nodes: Sequence[int]) -> None:
        """What was taken back on the quotas of these nodes is not restored any more.

        Only looked for where there is much of it, so that it is passed over no more often than what stands.
        """
        for node in nodes:
            if 2 * self.gone.get(node, 0) > len(self.on_quota.get(node, ())):
                self.on_quota[node] = [grant for grant in self.on_quota[node] if not grant.taken_back]
                self.gone[node] = 0

    def charge(self, path: Path, parts: Parts, devices: int) -> None:
        """Reserve, or with negative devices release, room without granting it to anybody."""
        for pool, workers in parts:
            self.accounts.charge(path, pool, workers * devices)

    def _book(self, grant: Grant, sign: int) -> None:
        self.recall.book(grant, sign)
        claimant = grant.claimant
        for pool, workers in grant.parts:
            self.accounts.charge(claimant.path, pool, sign * workers * claimant.devices)
            before = claimant.given.get(pool, 0)
            claimant.given[pool] = after = before + sign * workers
            claimant.entitled += sign * workers
            if claimant.stays:
                held = claimant.held.get(pool, 0)
                claimant.placed += min(after, held) - min(before, held)


def groups_of(claimant: Claimant) -> tuple[Group, ...]:
    """Those it may still choose from: kind and site are the same for all its workers."""
    return (_group_of(claimant),) if claimant.entitled else claimant.groups


def _group_of(claimant: Claimant) -> Group:
    if len(claimant.groups) == 1:
        return claimant.groups[0]
    pool = claimant.grants[0].parts[0][0]
    return next(group for group in claimant.groups if pool in group.for_minimum)
