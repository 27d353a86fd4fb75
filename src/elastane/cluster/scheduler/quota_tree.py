"""The tree of quotas: the devices of each pool that each team, each cohort and the cluster owns and lends.

The arithmetic is Kueue's (hierarchical cohorts): a node's quota is its nominal quota and what its children
lend; the part it does not lend is local to it; what it uses beyond the local part is used on its parent's
account. The cluster, the root, owns every device that was promised to no node. If a pool has fewer devices
than were promised, every promise shrinks in proportion, and all devices there stay promised
(`scale_promises`). But none shrinks below the minimums of its owner's running jobs, so that a promise beyond
the pool stops no job.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from elastane.cluster.nouns.config import Cohort, Quota, Team

CLUSTER = 0
"""Index of the root."""

Path: TypeAlias = tuple[int, ...]
"""Nodes from a team up to the cluster."""


class QuotaLimits(NamedTuple):
    """What nodes own and may use.

    Args:
        quota: ``quota[node][pool]``: devices the node owns, and those its children lend it.
        local: the part of ``quota`` that the node does not lend.
        ceiling: the most devices the node may use on its parent's account.
    """

    quota: tuple[tuple[int, ...], ...]
    local: tuple[tuple[int, ...], ...]
    ceiling: tuple[tuple[float, ...], ...]


class QuotaTree(NamedTuple):
    """The quota tree over indexed nodes and pools.

    Args:
        names: names of the nodes; the cluster's is empty.
        parents: index of each node's parent; the cluster is its own parent.
        weights: weights of the nodes.
        paths: path of each node, the node itself first, the cluster last.
        upwards: nodes, children before parents.
        limits: with promises that keep room for running jobs.
        plain_limits: with promises that all shrink in proportion. New workers must fit these limits as well.
            Else a job might be put where there is room only as long as another job runs.
        capacity: devices of each pool that jobs can have.
    """

    names: tuple[str, ...]
    parents: tuple[int, ...]
    weights: tuple[float, ...]
    paths: tuple[Path, ...]
    upwards: tuple[int, ...]
    limits: QuotaLimits
    plain_limits: QuotaLimits
    capacity: tuple[int, ...]

    def compute_most(self, node: int, pool: int) -> float:
        """Return the most devices that a node may use, borrowed ones included."""
        return self.limits.local[node][pool] + self.limits.ceiling[node][pool]


def build_quota_tree(
    cohorts: Sequence[Cohort],
    teams: Sequence[Team],
    pools: Mapping[str, int],
    capacity: Sequence[int],
    running: Mapping[tuple[str, str], int] = MappingProxyType({}),
) -> QuotaTree:
    """Build the tree over all cohorts and teams.

    Args:
        cohorts: with unique names; a cohort with an unknown parent is a child of the cluster.
        teams: with unique names; a team with an unknown cohort is a child of the cluster.
        pools: index of each pool.
        capacity: devices of each pool that jobs can have.
        running: devices for the minimums of running jobs, by team and pool.

    Raises:
        ValueError: cohorts that are each other's parents.
    """
    nodes: list[Cohort | Team] = [Cohort(name=""), *cohorts, *teams]
    index = {cohort.name: i for i, cohort in enumerate(cohorts, start=1)}
    parents = [CLUSTER, *(index.get(_find_parent(node), CLUSTER) for node in nodes[1:])]
    paths = [_find_path(node, parents) for node in range(len(nodes))]
    upwards = sorted(range(len(nodes)), key=lambda node: (-len(paths[node]), node))

    written = [{quota.pool: quota for quota in node.quotas} for node in nodes]
    nothing = Quota(pool="")
    # By pool and node.
    nominal, plain = [], []
    for name, pool in pools.items():
        promises = [quotas.get(name, nothing).nominal_quota for quotas in written]
        needed = [running.get((node.name, name), 0) if isinstance(node, Team) else 0 for node in nodes]
        assigned = _assign(needed, promises, parents, upwards)
        plain.append(scale_promises(promises, capacity[pool]))
        nominal.append(scale_promises(promises, capacity[pool], assigned))

    def compute_limits(nominal: list[list[int]]) -> QuotaLimits:
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
        return QuotaLimits(tuple(map(tuple, quota)), tuple(map(tuple, local)), tuple(map(tuple, ceiling)))

    limits = compute_limits(nominal)
    return QuotaTree(
        names=tuple(node.name for node in nodes),
        parents=tuple(parents),
        weights=tuple(node.weight for node in nodes),
        paths=tuple(paths),
        upwards=tuple(upwards),
        limits=limits,
        plain_limits=limits if plain == nominal else compute_limits(plain),
        capacity=tuple(capacity),
    )


def _assign(
    needed: list[int], promises: Sequence[int], parents: Sequence[int], upwards: Sequence[int]
) -> list[int]:
    """Return the part of each promise that its own jobs need; a parent covers what the promise cannot."""
    assigned = [0] * len(promises)
    for node in upwards:
        assigned[node] = min(needed[node], promises[node])
        if node != CLUSTER:
            needed[parents[node]] += needed[node] - assigned[node]
    return assigned


def _find_parent(node: Cohort | Team) -> str:
    return node.parent if isinstance(node, Cohort) else node.cohort


def _find_path(node: int, parents: Sequence[int]) -> Path:
    path = [node]
    while path[-1] != CLUSTER:
        path.append(parents[path[-1]])
        if len(path) > len(parents):
            raise ValueError("cohorts are each other's parents")
    return tuple(path)


def scale_promises(nominal: Sequence[int], there: int, least: Sequence[int] = ()) -> list[int]:
    """Return how many devices each promise of a pool is worth while ``there`` devices exist.

    If fewer exist than were promised, all promises shrink in proportion, rounded by Webster's method
    (Sainte-Laguë): the next device goes to the largest quotient of promise and one more than twice the
    devices it has already; of equal ones to the first. The method is house-monotone: a lost device costs one
    promise, and a device that comes back costs none, which largest remainders do not guarantee (Balinski and
    Young, Fair Representation, 1982).

    Promises of one size are added up and take turns. Otherwise all small ones would round up or down at the
    same time, at the cost of the large ones.

    Args:
        nominal: devices promised.
        there: devices that exist, at least 0.
        least: the part of each promise that does not shrink, unless fewer devices than all of these exist.
    """
    kept = _shrink(nominal, there)
    fixed: dict[int, int] = {}
    while sum(least) <= there and (
        short := {i: devices for i, devices in enumerate(least) if kept[i] < devices and i not in fixed}
    ):
        fixed |= short
        others = [0 if i in fixed else promise for i, promise in enumerate(nominal)]
        kept = _shrink(others, there - sum(fixed.values()))
        for i, devices in fixed.items():
            kept[i] = devices
    return kept


def _shrink(nominal: Sequence[int], there: int) -> list[int]:
    promised = sum(nominal)
    if promised <= there:
        return list(nominal)
    alike: dict[int, list[int]] = {}
    for i, devices in enumerate(nominal):
        if devices:
            alike.setdefault(devices, []).append(i)
    totals = [devices * len(members) for devices, members in alike.items()]
    # Half a device fewer per size of promise is never too many; a few turns are left to play.
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
