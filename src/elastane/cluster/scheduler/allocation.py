"""The allocation of a plan: grants of workers, each on the quota of a node, and how to take one back."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from elastane.cluster.scheduler.planned_job import PlannedJob, WorkerGrant
from elastane.cluster.scheduler.quota_ledger import QuotaLedger
from elastane.cluster.scheduler.quota_tree import Path
from elastane.cluster.scheduler.reclaimable import ReclaimableSums

Parts = tuple[tuple[int, int], ...]
"""``(pool, workers)``; a pool may appear twice."""

_rank = attrgetter("rank")


class HoldRecord(NamedTuple):
    """Places that were held on one quota while other jobs asked for them.

    Args:
        node: the node that owns the quota.
        holders: waiting jobs that held places.
    """

    node: int
    holders: list[PlannedJob]
    refused: list[PlannedJob]


class Allocation:
    """The grants of a plan, and the ledger that they are charged to.

    Args:
        ledger: the devices in use; every grant changes it.
        pools: names of the pools, for reasons.

    Attributes:
        unconfirmed: of each pool, devices on which running jobs have their minimums and that have not been
            granted to them yet.
        reclaimable: sums of what may be taken back.
        hold_records: places that were held, and from which jobs.
        taken_back: number of grants that were taken back and not restored.
        waiting_round: the node with a round that waits while nodes below it are refilled; None: no node is
            refilled.
    """

    def __init__(self, ledger: QuotaLedger, pools: tuple[str, ...], jobs: Iterable[PlannedJob]) -> None:
        self.ledger, self.pools, self.reclaimable = ledger, pools, ReclaimableSums(ledger)
        self.unconfirmed = [0] * len(pools)
        for job in jobs:
            for pool, workers in job.held_minimum.items():
                self.unconfirmed[pool] += workers * job.devices
        self.hold_records: list[HoldRecord] = []
        self.taken_back = 0
        self.waiting_round: int | None = None
        self._by_node: dict[int, list[WorkerGrant]] = {}
        self._taken_back_by_node: dict[int, int] = {}
        self._next_rank = 0

    def grant(self, job: PlannedJob, node: int, parts: Parts, *, growth: bool) -> WorkerGrant:
        grant = WorkerGrant(job, node, parts, growth, self._next_rank)
        self._next_rank += 1
        self._by_node.setdefault(node, []).append(grant)
        job.grants.append(grant)
        self._count(grant, 1)
        return grant

    def take_back(self, grant: WorkerGrant) -> None:
        grant.taken_back = True
        self.taken_back += 1
        self._taken_back_by_node[grant.node] = self._taken_back_by_node.get(grant.node, 0) + 1
        grants = grant.job.grants
        del grants[bisect_left(grants, grant.rank, key=_rank)]
        self._count(grant, -1)

    def restore(self, grant: WorkerGrant) -> None:
        """Undo `take_back`."""
        grant.taken_back = False
        self.taken_back -= 1
        self._taken_back_by_node[grant.node] -= 1
        insort(grant.job.grants, grant, key=_rank)
        self._count(grant, 1)

    def list_latest(self, nodes: Sequence[int]) -> Iterator[WorkerGrant]:
        """Yield the grants on the quotas of these nodes, one node after the other, the latest grant first."""
        for node in nodes:
            yield from (grant for grant in reversed(self._by_node.get(node, ())) if not grant.taken_back)

    def forget_taken_back(self, nodes: Sequence[int]) -> None:
        """Drop the grants on the quotas of these nodes that were taken back, so that none can be restored.

        A list is filtered only when more than half of it was taken back, so the cost stays in proportion.
        """
        for node in nodes:
            if 2 * self._taken_back_by_node.get(node, 0) > len(self._by_node.get(node, ())):
                self._by_node[node] = [grant for grant in self._by_node[node] if not grant.taken_back]
                self._taken_back_by_node[node] = 0

    def reserve(self, path: Path, parts: Parts, devices: int) -> None:
        """Charge room without granting it; with a negative number of devices per worker, release it."""
        for pool, workers in parts:
            self.ledger.charge(path, pool, workers * devices)

    def _count(self, grant: WorkerGrant, sign: int) -> None:
        self.reclaimable.count(grant, sign)
        job = grant.job
        for pool, workers in grant.parts:
            self.ledger.charge(job.path, pool, sign * workers * job.devices)
            before = job.granted.get(pool, 0)
            job.granted[pool] = after = before + sign * workers
            job.entitled += sign * workers
            if job.held_workers:
                held = job.held.get(pool, 0)
                job.granted_in_place += min(after, held) - min(before, held)
                needed = job.held_minimum.get(pool, 0)
                self.unconfirmed[pool] -= (min(after, needed) - min(before, needed)) * job.devices
