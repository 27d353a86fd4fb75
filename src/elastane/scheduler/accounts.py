"""What every node of the quota tree owns, lends and uses of each pool, counted in devices.

The arithmetic is Kueue's (hierarchical cohorts): a node's quota is its nominal quota and what its children
lend; the part it does not lend is local to it; what it uses beyond the local part is used on its parent's
account. The cluster, the root, owns what nobody was promised. If a pool has fewer devices than were
promised, every promise shrinks in proportion, and all that is there stays promised (`kept_promises`).
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from elastane.api.quotas import Cohort, Quota, Team

CLUSTER = 0
"""Index of the root."""

Path: TypeAlias = tuple[int, ...]
"""Nodes from a team up to the cluster."""


class Tree(NamedTuple):
    """The quota tree over indexed nodes and pools.

    Args:
        names: of the nodes; the cluster's is empty.
        parents: index of each node's parent; the cluster's is its own.
        weights: of the nodes.
        paths: of each node, itself first, the cluster last.
        upwards: nodes, children before parents.
        quota: ``quota[node][pool]``, what the node owns and is lent by its children.
        local: the part of ``quota`` that it does not lend.
        ceiling: the most it may use on its parent's account.
        capacity: devices of each pool that jobs can have.
    """

    names: tuple[str, ...]
    parents: tuple[int, ...]
    weights: tuple[float, ...]
    paths: tuple[Path, ...]
    upwards: tuple[int, ...]
    quota: tuple[tuple[int, ...], ...]
    local: tuple[tuple[int, ...], ...]
    ceiling: tuple[tuple[float, ...], ...]
    capacity: tuple[int, ...]

    def most(self, node: int, pool: int) -> float:
        """Devices that a node may use, borrowed ones included."""
        return self.local[node][pool] + self.ceiling[node][pool]


def grow_tree(
    cohorts: Sequence[Cohort],
    teams: Sequence[Team],
    pools: Mapping[str, int],
    capacity: Sequence[int],
) -> Tree:
    """The tree over all cohorts and teams.

    Args:
        cohorts: with unique names; one whose parent is unknown hangs below the cluster.
        teams: likewise.
        pools: index of each pool.
        capacity: devices of each pool that jobs can have.

    Raises:
        ValueError: cohorts that are each other's parents.
    """
    nodes: list[Cohort | Team] = [Cohort(name=""), *cohorts, *teams]
    index = {cohort.name: i for i, cohort in enumerate(cohorts, start=1)}
    parents = [CLUSTER, *(index.get(_parent(node), CLUSTER) for node in nodes[1:])]
    paths = [_path(node, parents) for node in range(len(nodes))]
    upwards = sorted(range(len(nodes)), key=lambda node: (-len(paths[node]), node))

    written = [{quota.pool: quota for quota in node.quotas} for node in nodes]
    nothing = Quota(pool="")
    # By pool and node.
    nominal = [
        kept_promises([quotas.get(name, nothing).nominal_quota for quotas in written], capacity[pool])
        for name, pool in pools.items()
    ]
    quota = [[0] * len(pools) for _ in nodes]
    local = [[0] * len(pools) for _ in nodes]
    ceiling = [[math.inf] * len(pools) for _ in nodes]
    quota[CLUSTER] = list(capacity)
    for node in upwards:
        if node == CLUSTER:
            continue
        for name, pool in pools.items():
            mine = written[node].get(name, nothing)
            quota[CLUSTER][pool] -= nominal[pool][node]
            quota[node][pool] += nominal[pool][node]
            owned = quota[node][pool]
            lent = owned if mine.lending_limit is None else min(owned, mine.lending_limit)
            local[node][pool] = owned - lent
            if mine.borrowing_limit is not None:
                ceiling[node][pool] = lent + mine.borrowing_limit
            quota[parents[node]][pool] += lent
    return Tree(
        names=tuple(node.name for node in nodes),
        parents=tuple(parents),
        weights=tuple(node.weight for node in nodes),
        paths=tuple(paths),
        upwards=tuple(upwards),
        quota=tuple(map(tuple, quota)),
        local=tuple(map(tuple, local)),
        ceiling=tuple(map(tuple, ceiling)),
        capacity=tuple(capacity),
    )


def _parent(node: Cohort | Team) -> str:
    return node.parent if isinstance(node, Cohort) else node.cohort


def _path(node: int, parents: Sequence[int]) -> Path:
    path = [node]
    while path[-1] != CLUSTER:
        path.append(parents[path[-1]])
        if len(path) > len(parents):
            raise ValueError("cohorts are each other's parents")
    return tuple(path)


def kept_promises(nominal: Sequence[int], there: int) -> list[int]:
    """What each promise of a pool's devices is worth while so many are there.

    If that is fewer than were promised, all shrink in proportion, rounded by Webster's method (Sainte-Laguë):
    the next device goes to whose promise is the largest, divided by one more than twice what it has already;
    the first of equals first. It is house-monotone: a lost device costs one of them, and one that comes back
    costs nobody any, as it may by the largest remainders (Balinski and Young, Fair Representation, 1982).

    Promises of one size count as one together and take turns. Otherwise all small ones would round up or down
    at the same time, and the large ones bear it.

    Args:
        nominal: devices promised.
        there: devices, at least 0.
    """
    promised = sum(nominal)
    if promised <= there:
        return list(nominal)
    alike: dict[int, list[int]] = {}
    for i, devices in enumerate(nominal):
        if devices:
            alike.setdefault(devices, []).append(i)
    totals = [devices * len(members) for devices, members in alike.items()]
    # As for half a device fewer per size of promise, which is never too many: a few turns are left.
    most = max(0, 2 * there - len(totals))
    parts = [(total * most + promised) // (2 * promised) for total in totals]
    turns = [
        (Fraction(2 * part + 1, total), i) for i, (part, total) in enumerate(zip(parts, totals, strict=True))
    ]
    heapq.heapify(turns)
    for _ in range(there - sum(parts)):
        i = turns[0][1]
        parts[i] += 1
        heapq.heapreplace(turns, (Fraction(2 * parts[i] + 1, totals[i]), i))
    kept = [0] * len(nominal)
    for part, members in zip(parts, alike.values(), strict=True):
        each, over = divmod(part, len(members))
        for turn, i in enumerate(members):
            kept[i] = each + (turn < over)
    return kept


class Accounts:
    """Who uses what. Devices, not workers.

    Args:
        tree: who may use what.
        growable: of each pool, devices that something new may be put on; fewer than its capacity shortly
            before a reservation.
    """

    def __init__(self, tree: Tree, growable: Sequence[int]) -> None:
        self.tree = tree
        self.used = [[0] * len(tree.capacity) for _ in tree.names]
        self.free = list(tree.capacity)
        self.growable = list(growable)

    def room(self, path: Path, level: int, pool: int) -> float:
        """Devices that the team at the path's start may still use on the quota of ``path[level]``.

        What is above that node is not asked: what it owns is its right. Negative if it uses too much.
        """
        return self.limit(path, level, pool)[0]

    def limit(self, path: Path, level: int, pool: int) -> tuple[float, int]:
        """`room`, and the node whose quota or borrowing limit it comes from."""
        quota, local, ceiling = self.tree.quota, self.tree.local, self.tree.ceiling
        bound = path[level]
        room: float = quota[bound][pool] - self.used[bound][pool]
        for node in path[level - 1 :: -1] if level else ():
            own = local[node][pool] - self.used[node][pool]
            borrowable = ceiling[node][pool] + min(own, 0)
            if borrowable < room:
                room, bound = borrowable, node
            if own >= 0:
                room = own + max(room, 0)
        return room, bound

    def idle(self, path: Path, level: int) -> bool:
        """Whether the team at the path's start may use one device more of any pool on that quota."""
        return any(there > 0 and self.room(path, level, pool) > 0 for pool, there in enumerate(self.free))

    def charge(self, path: Path, pool: int, devices: int) -> None:
        """The team uses so many devices more; fewer if negative."""
        self.free[pool] -= devices
        self.growable[pool] -= devices
        self.owe(path, pool, devices)

    def owe(self, path: Path, pool: int, devices: int) -> None:
        """As `charge`, on quota alone: for devices that the pool no longer counts."""
        local, used = self.tree.local, self.used
        for node in path:
            mine, before = local[node][pool], used[node][pool]
            used[node][pool] = after = before + devices
            devices = max(0, after - mine) - max(0, before - mine)
            if not devices:
                return

    def relieve(self, path: Path, pool: int, devices: Sequence[int]) -> None:
        """So many devices less are used by each node from the path's start on; the last number is for all."""
        *nodes, in_all = devices
        for node, less in zip(path, nodes, strict=False):
            self.used[node][pool] -= less
        self.free[pool] += in_all
        self.growable[pool] += in_all

    def share(self, node: int, more_of: int = 0, more: int = 0) -> float:
        """Dominant share: the largest part of any pool that the node has borrowed, over its weight.

        With ``more`` devices of the pool ``more_of`` than it uses.
        """
        largest = 0.0
        pools = zip(self.used[node], self.tree.quota[node], self.tree.capacity, strict=True)
        for pool, (used, quota, devices) in enumerate(pools):
            borrowed = used - quota + more if pool == more_of else used - quota
            if borrowed > 0 and devices > 0 and borrowed > largest * devices:
                largest = borrowed / devices
        return largest / self.tree.weights[node]
