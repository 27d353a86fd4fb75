"""The round of minimums: which jobs get their minimum on the quota of one node.

The jobs below the node come

1. by priority; but jobs that were started a moment ago come before all that wait, because a start must be
   worth its cost;
2. running jobs before waiting ones, because fairness stops no job; of the running ones first those that can
   stay where they are or may move on what their team or cohort owns, then those that would borrow another
   place; among equals the one that was started first;
3. of the waiting ones first those that have run out of patience, oldest first; then by the dominant shares of
   their cohorts and teams; then the oldest.

A minimum that does not fit may take back grants on quotas further down the job's path (`reclaim.py`). The
rest that is then free on these quotas belongs to their owners first. So the round names the nodes that have
to hand out their quotas again, and continues after that (`allocator.py`).
"""

from collections.abc import Container, Generator, Iterator, Sequence

import msgspec

from elastane.cluster.nouns.plans import NoRoom
from elastane.cluster.scheduler.allocation import Allocation, Parts
from elastane.cluster.scheduler.holds import PlaceHolds
from elastane.cluster.scheduler.order import iterate_waiting, sort_running
from elastane.cluster.scheduler.placement import (
    Place,
    count_free_devices,
    fill_held,
    find_limit,
    list_bare_sites,
    list_open_groups,
    place_in_held,
    place_workers,
)
from elastane.cluster.scheduler.planned_job import PlannedJob, WorkerGrant
from elastane.cluster.scheduler.reclaim import put_back, reclaim


class MinimumRound:
    """One round of minimums on the quota of one node.

    Args:
        node: the node that owns the quota.
        waiting: jobs below the node that do not have their minimum.
        grain: step in which dominant shares are compared.
    """

    def __init__(
        self, allocation: Allocation, node: int, waiting: Sequence[PlannedJob], grain: float
    ) -> None:
        self._allocation, self._node, self._grain = allocation, node, grain
        self._queues: dict[int, list[PlannedJob]] = {}
        for job in waiting:
            self._queues.setdefault(job.priority, []).append(job)
        self._protected = sort_running(job for job in waiting if job.protected)
        self._holds = PlaceHolds(allocation, node)
        self._refusals: dict[object, tuple[int, int]] = {}
        self._vacated: set[int] = set()

    def run(self) -> Iterator[int]:
        """Serve all jobs in the order of right; yield each node to refill before the round goes on."""
        while self._queues:
            jobs = self._queues.pop(max(self._queues))
            running = sort_running(jobs)
            served = set()
            for job in running:
                if (yield from self._serve_in_place(job)):
                    served.add(job.number)
            # A job that must leave its place borrows none where another running job of its priority is.
            for job in running:
                if job.number not in served:
                    yield from self._serve(job)
            yield from self._refill_vacated()
            starting = [job for job in jobs if not job.is_running]
            if starting:
                for job in self._protected:
                    yield from self._serve(job)
                yield from self._refill_vacated()
                yield from self._serve_waiting(starting)

    def _serve_waiting(self, waiting: list[PlannedJob]) -> Iterator[int]:
        """Serve the waiting jobs of one priority, beside the places that are held."""
        self._refusals.clear()
        self._holds.enforce()
        for job in iterate_waiting(self._allocation, self._node, waiting, self._grain):
            yield from self._serve(job)
        self._holds.release(waiting)

    def _serve_in_place(self, job: PlannedJob) -> Generator[int, None, bool]:
        """Serve a running job unless it would have to borrow a place that it does not have yet."""
        level = job.path.index(self._node)
        if job.held_workers < job.minimum:
            return False
        if level < job.level or job.has_minimum:
            yield from self._serve(job)
            return True
        if (yield from self._give(job, level, place_in_held)):
            return True
        missing = job.minimum - job.entitled
        if any(place_workers(self._allocation, job, missing, below) is not None for below in range(level)):
            return (yield from self._give(job, level, place_workers))
        return False

    def _serve(self, job: PlannedJob) -> Iterator[int]:
        """Give a job its minimum if that fits; else let it keep what it may, or refuse it."""
        if job.has_minimum:
            return
        level = job.path.index(self._node)
        keeps, lacks = job.is_running and level < job.level, job.held_workers < job.minimum
        if (lacks or not keeps) and (yield from self._give(job, level, place_workers)):
            return
        if keeps:
            if job.wait_reason is None:
                yield from self._keep_places(job, level)
            if lacks and job.entitled and not job.has_minimum:
                # Quotas further up may give the rest; until then no job starts on what this one may need.
                self._holds.add(job)
            return
        self._refuse(job, level)
        if job.out_of_patience:
            self._holds.add(job)

    def _give(self, job: PlannedJob, level: int, place: Place) -> Generator[int, None, bool]:
        """Grant a job its whole minimum; return whether that was possible."""
        parts, taken = self._find_places(job, level, place)
        if parts is not None and self._vacated:
            put_back(self._allocation, taken)
            yield from self._refill_vacated()
            if job.has_minimum:
                return True
            parts, taken = self._find_places(job, level, place)
        if parts is None:
            return False
        self._allocation.grant(job, self._node, parts, growth=False)
        job.wait_reason = None
        yield from self._compensate(taken)
        return True

    def _keep_places(self, job: PlannedJob, level: int) -> Iterator[int]:
        """Grant a running job the places it has. If these are enough, it takes others only on its last quota.

        So it never moves between what its team owns and what it borrows without a reason. Growth further down
        gives way to it here as to a start; else a start could take growth back, and the growth that returns
        would make a borrower of the job that was started.
        """
        missing = job.minimum - job.entitled
        parts = fill_held(self._allocation, job, missing, level)
        if parts and self._vacated:
            yield from self._refill_vacated()
            parts = fill_held(self._allocation, job, missing, level)
        fits = sum(workers for _, workers in parts) == missing
        if not fits and level and job.held_workers >= job.minimum:
            fits = yield from self._give(job, level, place_in_held)
            parts = () if fits else fill_held(self._allocation, job, missing, level)
        if parts:
            self._allocation.grant(job, self._node, parts, growth=False)

    def _find_places(
        self, job: PlannedJob, level: int, place: Place
    ) -> tuple[Parts | None, list[WorkerGrant]]:
        """Return where the rest of a job's minimum fits, or None; and the grants taken back for it."""
        missing = job.minimum - job.entitled
        alike = (job.path[0], job.groups, job.devices)
        taken_back, least = self._refusals.get(alike, (-1, 0))
        if not job.is_running and taken_back == self._allocation.taken_back and least <= missing:
            # A job like this one was just refused, and no grant has been taken back since.
            return None, []
        parts = place(self._allocation, job, missing, level)
        if parts is not None:
            return parts, []
        if level and not self._holds.forbid_reclaim(job, level):
            # A job that can keep all its workers stops no teammate to have them on a quota of its own.
            growth_only = level < job.level and job.held_workers >= job.minimum
            parts, taken = reclaim(self._allocation, job, missing, level, place, growth_only=growth_only)
            if parts is not None:
                return parts, taken
        if not job.is_running:
            self._refusals[alike] = self._allocation.taken_back, missing
        return None, []

    def _compensate(self, taken: list[WorkerGrant]) -> Iterator[int]:
        """Refill the quotas that grants were taken from, for their owners; then let displaced jobs ask."""
        yield from {grant.node: None for grant in taken}
        for grant in taken:
            displaced = grant.job
            may_ask = self._node in displaced.path[: displaced.level + 1]
            if not grant.growth and not displaced.has_minimum and may_ask:
                self._queues.setdefault(displaced.priority, []).append(displaced)

    def _refuse(self, job: PlannedJob, level: int) -> None:
        if level < job.level:
            return
        missing = job.minimum - job.entitled
        holder = self._holds.find_holder(job)
        job.wait_reason = explain_no_room(self._allocation, job, missing, level, held_for=holder)
        # A part of a minimum is of no use to the job, but may be to others of its team.
        for grant in list(job.grants):
            self._allocation.take_back(grant)
            self._vacated.add(grant.node)

    def _refill_vacated(self) -> Iterator[int]:
        """Refill the quotas that refused jobs gave back, for their owners, the nodes furthest down first.

        Many jobs may give something back before another job could use any of it; each quota is refilled once
        for all of them.
        """
        paths = self._allocation.ledger.tree.paths
        nodes = sorted(self._vacated, key=lambda node: (-len(paths[node]), node))
        self._vacated.clear()
        yield from nodes


def explain_no_room(
    allocation: Allocation,
    job: PlannedJob,
    workers: int,
    level: int,
    *,
    held_for: str = "",
    spared: Container[int] = (),
) -> NoRoom:
    """Return why ``workers`` more do not fit, by the pool that comes closest.

    Args:
        workers: how many more.
        level: index in the job's path of the node that would pay.
        held_for: the job for which the places are held; empty: they are not.
        spared: pools in which the job takes nothing from the minimum of a running job.
    """
    ledger, groups = allocation.ledger, list_open_groups(job)
    found: dict[int, NoRoom] = {}
    for pool in dict.fromkeys(pool for group in groups for pool in group.for_minimum):
        room, bound = find_limit(allocation, job, level, pool, new=True)
        there = min(count_free_devices(allocation, pool, spared), ledger.growable[pool])
        # A quota that has shrunk with its pool grows with it again when the reservation is over.
        by_pool = there <= room or job.awaits_reservation
        reason = NoRoom(
            pool=allocation.pools[pool],
            need=workers * job.devices,
            room=max(0, int(min(room, there))),
            node=None if by_pool else ledger.tree.names[bound],
            held_for=held_for,
        )
        found[pool] = reason
    several = (group for group in groups if len(group.sites) > 1)
    for site in (site for group in several for site in list_bare_sites(job, group, ())):
        best = max((found[pool] for pool in site), key=lambda reason: reason.room)
        if best.room < job.devices:
            return msgspec.structs.replace(best, need=job.devices)
    return max(found.values(), key=lambda reason: reason.room)
