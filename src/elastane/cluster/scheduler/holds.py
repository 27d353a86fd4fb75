"""Held places: a waiting job that has run out of patience keeps them from jobs that would start later.

A running job that has lost a part of its minimum holds its place as well. Held places stop only jobs that
would start; growth may use them meanwhile.
"""

from collections.abc import Container, Sequence

from elastane.cluster.scheduler.allocation import Allocation, HoldRecord, Parts
from elastane.cluster.scheduler.placement import fill_new
from elastane.cluster.scheduler.planned_job import PlannedJob


class PlaceHolds:
    """The places held in the round of one node, which hands out its quota."""

    def __init__(self, allocation: Allocation, node: int) -> None:
        self._allocation, self._node = allocation, node
        self._holders: dict[int, PlannedJob] = {}
        self._reserved: list[tuple[PlannedJob, Parts]] = []
        self._holder_of_pool: dict[int, str] = {}
        self._held_below: set[int] = set()
        self._in_force = False

    def add(self, job: PlannedJob) -> None:
        """Let a job hold its place from now on."""
        on_last_quota = self._node == job.path[job.level]
        if job.number in self._holders or (job.holds_last_quota_only and not on_last_quota):
            return
        self._holders[job.number] = job
        if job.path[0] != self._node:
            self._held_below.add(job.path[job.path.index(self._node) - 1])
        if self._in_force:
            self._reserve(job)

    def enforce(self) -> None:
        """Reserve all held places, before jobs that wait are served."""
        self._in_force = True
        for job in self._holders.values():
            self._reserve(job)

    def release(self, waiting: Sequence[PlannedJob]) -> None:
        """Release the reserved places once ``waiting`` jobs were served, and record which were refused."""
        if self._reserved:
            holders = [job for job, _ in self._reserved if not job.is_running]
            refused = [job for job in waiting if not job.has_minimum]
            self._allocation.hold_records.append(HoldRecord(self._node, holders, refused))
        for job, parts in self._reserved:
            self._allocation.reserve(job.path, parts, -job.devices)
        self._reserved, self._holder_of_pool, self._in_force = [], {}, False

    def forbid_reclaim(self, job: PlannedJob, level: int) -> bool:
        """Return whether a waiting job may take nothing back, because a holder of its team waits for it."""
        return not job.is_running and job.path[level - 1] in self._held_below

    def find_holder(self, job: PlannedJob) -> str:
        """Return the name of a job that holds places in a pool that ``job`` could use; empty: none does."""
        pools = (pool for group in job.groups for pool in group.for_minimum)
        return next((self._holder_of_pool[pool] for pool in pools if pool in self._holder_of_pool), "")

    def _reserve(self, job: PlannedJob) -> None:
        missing = job.minimum - job.entitled
        parts = fill_new(self._allocation, job, missing, job.path.index(self._node))
        self._allocation.reserve(job.path, parts, job.devices)
        self._reserved.append((job, parts))
        if job.out_of_patience:
            for pool, _ in parts:
                self._holder_of_pool.setdefault(pool, job.state.name)


def find_futile_holders(allocation: Allocation) -> set[int]:
    """Return the numbers of jobs that hold places in a team or cohort only for other teams to borrow them.

    Such a job also needs quota that its team or cohort does not own, and has no right to it. The jobs that it
    keeps waiting need no more than the team or cohort owns.
    """
    ledger, found = allocation.ledger, set[int]()
    idle_without_growth = list(ledger.free)
    for node in ledger.tree.upwards if allocation.hold_records else ():
        for grant in allocation.list_latest((node,)):
            for pool, workers in grant.parts if grant.growth else ():
                idle_without_growth[pool] += workers * grant.job.devices
    for node, holders, refused in allocation.hold_records:
        quota, used = ledger.tree.limits.quota[node], ledger.used[node]
        lent = {
            pool for pool, idle in enumerate(idle_without_growth) if quota[pool] - used[pool] > max(0, idle)
        }
        if lent and any(not job.has_minimum and _fits_quota_alone(job, quota, lent) for job in refused):
            above = (job for job in holders if not job.has_minimum and node != job.path[job.level])
            found |= {job.number for job in above if not _fits_quota_alone(job, quota, lent)}
    return found


def _fits_quota_alone(job: PlannedJob, quota: Sequence[int], lent: Container[int]) -> bool:
    """Return whether a job's minimum needs no more than this quota, a lent part of which it could use."""
    return any(
        any(pool in lent for pool in group.for_minimum)
        and sum(max(0, quota[pool]) // job.devices for pool in group.for_minimum) >= job.minimum
        for group in job.groups
    )
