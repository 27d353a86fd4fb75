"""The ledger of a plan: the used devices of each pool and of each quota."""

from collections.abc import Sequence
from operator import itemgetter

from elastane.cluster.scheduler.quota_tree import Path, QuotaLimits, QuotaTree


class QuotaLedger:
    """Devices in use, by node of the quota tree and by pool. It counts devices, not workers.

    Args:
        growable: of each pool, devices on which new workers may be put; fewer than its capacity shortly
            before a reservation.

    Attributes:
        used: ``used[node][pool]``.
        free: of each pool, devices that are not in use.
    """

    def __init__(self, tree: QuotaTree, growable: Sequence[int]) -> None:
        self.tree = tree
        self.used = [[0] * len(tree.capacity) for _ in tree.names]
        self.free = list(tree.capacity)
        self.growable = list(growable)
        self._is_plain = tree.plain_limits is tree.limits
        # By the plain limits, which leave other parts to the parents.
        self._plainly_used = self.used if self._is_plain else [list(row) for row in self.used]

    def find_room(self, path: Path, level: int, pool: int, *, new: bool) -> float:
        """Return the devices that a team may still use on the quota of ``path[level]``.

        Nodes above that one set no limit: a node has a right to its own quota. Negative if the team uses too
        much.

        Args:
            path: from the team to the cluster.
            level: index in ``path`` of the node that pays.
            new: for workers that are not there yet.
        """
        return self.find_limit(path, level, pool, new=new)[0]

    def find_limit(self, path: Path, level: int, pool: int, *, new: bool) -> tuple[float, int]:
        """Return the result of `find_room`, and the node that sets it by its quota or borrowing limit."""
        found = _find_limit(self.tree.limits, self.used, path, level, pool)
        if self._is_plain or not new:
            return found
        plain = _find_limit(self.tree.plain_limits, self._plainly_used, path, level, pool)
        return min(found, plain, key=itemgetter(0))

    def has_idle_device(self, path: Path, level: int) -> bool:
        """Return whether a team may use one more device of any pool on the quota of ``path[level]``."""
        return any(
            there > 0 and self.find_room(path, level, pool, new=False) > 0
            for pool, there in enumerate(self.free)
        )

    def charge(self, path: Path, pool: int, devices: int) -> None:
        """Count devices of a pool as used by a team; with a negative number, as no longer used."""
        self.free[pool] -= devices
        self.growable[pool] -= devices
        self.charge_quota(path, pool, devices)

    def charge_quota(self, path: Path, pool: int, devices: int) -> None:
        """Charge the quotas alone: for devices that the pool no longer counts."""
        _charge(self.tree.limits, self.used, path, pool, devices)
        if not self._is_plain:
            _charge(self.tree.plain_limits, self._plainly_used, path, pool, devices)

    def discharge(self, path: Path, pool: int, devices: Sequence[int]) -> None:
        """Count fewer devices as used: one number per node from the start of the path, the last for all."""
        *nodes, in_all = devices
        for node, less in zip(path, nodes, strict=False):
            self.used[node][pool] -= less
            if not self._is_plain:
                # By the plain limits, each node has used as many as there are, at most.
                self._plainly_used[node][pool] -= in_all
        self.free[pool] += in_all
        self.growable[pool] += in_all

    def compute_dominant_share(self, node: int, more_of: int = 0, more: int = 0) -> float:
        """Return the largest part of any pool that a node has borrowed, divided by its weight.

        Args:
            more_of: a pool of which it would use
            more: devices more than it does.
        """
        largest = 0.0
        pools = zip(self.used[node], self.tree.limits.quota[node], self.tree.capacity, strict=True)
        for pool, (used, quota, devices) in enumerate(pools):
            borrowed = used - quota + more if pool == more_of else used - quota
            if borrowed > 0 and devices > 0 and borrowed > largest * devices:
                largest = borrowed / devices
        return largest / self.tree.weights[node]


def _find_limit(
    limits: QuotaLimits, used: list[list[int]], path: Path, level: int, pool: int
) -> tuple[float, int]:
    quota, local, ceiling = limits
    bound = path[level]
    room: float = quota[bound][pool] - used[bound][pool]
    for node in path[level - 1 :: -1] if level else ():
        own = local[node][pool] - used[node][pool]
        borrowable = ceiling[node][pool] + min(own, 0)
        if borrowable < room:
            room, bound = borrowable, node
        if own >= 0:
            room = own + max(room, 0)
    return room, bound


def _charge(limits: QuotaLimits, used: list[list[int]], path: Path, pool: int, devices: int) -> None:
    local = limits.local
    for node in path:
        mine, before = local[node][pool], used[node][pool]
        used[node][pool] = after = before + devices
        # What exceeds the node's own quota is charged to its parent.
        devices = (after - mine if after > mine else 0) - (before - mine if before > mine else 0)
        if not devices:
            return
