"""Sums of the most devices that a job could take back.

They are kept over the grants that stand, so that a job that would not fit even then is refused before
anything is taken back. They may come out too large, never too small:

- What other children of a node give back all returns to the node, though a part of it may be their own again.
- A job that loses its minimum loses everything. Growth further up than its minimum counts as taken back in
  any case; of other jobs with grants on several quotas everything counts, with their minimums, for each node
  above.
"""

from typing import NamedTuple

from elastane.cluster.scheduler.planned_job import PlannedJob, WorkerGrant
from elastane.cluster.scheduler.quota_ledger import QuotaLedger


class DeviceSums(NamedTuple):
    """Devices that may be taken back.

    Args:
        below: ``below[node][pool]``, of jobs below the node, on its quota or one further up.
        on: ``on[node][pool]``, on its quota.
    """

    below: list[list[int]]
    on: list[list[int]]


class ReclaimableSums:
    """The sums over all grants that stand.

    Attributes:
        growth: devices that any job may take back.
        minimums: by priority, the minimums of jobs that are not protected, with all other devices that
            these jobs lose with them.
        spread: numbers of jobs that may lose grants on one quota because of another quota.
    """

    def __init__(self, ledger: QuotaLedger) -> None:
        self.ledger = ledger
        self.growth = self._make_zeros()
        self.minimums: dict[int, DeviceSums] = {}
        self.spread: set[int] = set()

    def count(self, grant: WorkerGrant, sign: int) -> None:
        """Add a grant to the sums; with a negative sign subtract it."""
        job = grant.job
        if sign > 0 and job.number not in self.spread and _is_spread(job.grants[0], grant):
            others = [other for other in job.grants if other is not grant]
            for other in others:
                self._count(other, -1)
            self.spread.add(job.number)
            for other in others:
                self._count(other, 1)
        self._count(grant, sign)

    def compute_most(self, job: PlannedJob, level: int, pool: int) -> list[int]:
        """Return the most devices of a pool that come back if a job takes back all that it may.

        Args:
            job: takes growth, and minimums of lower priorities, from its own team and cohorts.
            level: index in its path of the first node that it takes nothing from.

        Returns:
            By how much less each node of the path uses; last, how many devices that is in all.
        """
        used, local = self.ledger.used, self.ledger.tree.limits.local
        sums = [self.growth]
        sums += (lent for priority, lent in self.minimums.items() if priority < job.priority)
        found: list[int] = []
        passed = above = gone = 0
        for node in job.path[:level]:
            below, on = (
                sum(part.below[node][pool] for part in sums),
                sum(part.on[node][pool] for part in sums),
            )
            # Jobs below its child on the path give back to that first, and it passes on what it had borrowed.
            less = passed + below - above
            found.append(less)
            passed = min(less, max(0, used[node][pool] - local[node][pool]))
            above = below - on
            gone += on
        found.append(passed)
        for node in job.path[level:-1]:
            passed = min(passed, max(0, used[node][pool] - local[node][pool]))
            found.append(passed)
        return [*found, gone + above]

    def _make_zeros(self) -> DeviceSums:
        nodes, pools = len(self.ledger.tree.names), len(self.ledger.tree.capacity)
        return DeviceSums([[0] * pools for _ in range(nodes)], [[0] * pools for _ in range(nodes)])

    def _count(self, grant: WorkerGrant, sign: int) -> None:
        job, spread = grant.job, grant.job.number in self.spread
        if grant.growth:
            _add_grant(self.growth, grant, grant.node, sign)
        if (spread or not grant.growth) and not job.protected:
            if job.priority not in self.minimums:
                self.minimums[job.priority] = self._make_zeros()
            _add_grant(self.minimums[job.priority], grant, job.path[-1] if spread else grant.node, sign)


def _add_grant(sums: DeviceSums, grant: WorkerGrant, top: int, sign: int) -> None:
    """Count a grant as if it were on the quota of ``top``."""
    job = grant.job
    for pool, workers in grant.parts:
        devices = sign * workers * job.devices
        sums.on[top][pool] += devices
        for node in job.path:
            sums.below[node][pool] += devices
            if node == top:
                break


def _is_spread(first: WorkerGrant, other: WorkerGrant) -> bool:
    """Return whether a job has a minimum on one quota, and on another one more than growth further up."""
    if first.growth or first.node == other.node:
        return False
    path = first.job.path
    return not other.growth or path.index(other.node) < path.index(first.node)
