"""Why a waiting job does not get the devices of lower priorities: these are protected, or owned by others."""

from collections.abc import Iterator
from typing import NamedTuple

from elastane.cluster.nouns.plans import NoRoom, OwnedByOthers, Protected, Why
from elastane.cluster.scheduler.allocation import Allocation
from elastane.cluster.scheduler.cluster_index import ClusterIndex
from elastane.cluster.scheduler.planned_job import PlannedJob, WorkerGrant


class _GrantedDevices(NamedTuple):
    """The devices of a grant in one pool."""

    grant: WorkerGrant
    devices: int


class WaitReasons:
    """Rights that keep jobs of a higher priority from taking something."""

    def __init__(self, cluster: ClusterIndex, allocation: Allocation) -> None:
        self._cluster, self._names = cluster, allocation.ledger.tree.names
        self._protected: dict[int, list[_GrantedDevices]] = {}
        self._owned: dict[int, dict[tuple[int, int], int]] = {}
        self._promised: dict[int, int] = {}
        self._owned_by_others: dict[object, int] = {}
        for job in cluster.jobs:
            for grant in job.grants if job.is_running else ():
                self._add_grant(grant)
        for places in self._protected.values():
            places.sort(key=lambda place: (place.grant.job.priority, place.grant.job.number))

    def explain_wait(self, job: PlannedJob, why: NoRoom) -> Iterator[Why]:
        """Yield reasons beside ``why``; none if the rights of lower priorities are not in the way."""
        pool, missing = self._cluster.pools[why.pool], why.need - why.room
        if why.held_for or job.is_running:
            return
        protected = tuple(self._list_protected(job, why, pool, missing))
        if protected:
            yield from protected
            return
        devices = self._count_owned_by_others(job, pool)
        if devices >= missing:
            yield OwnedByOthers(pool=why.pool, devices=devices)

    def _add_grant(self, grant: WorkerGrant) -> None:
        job = grant.job
        for pool, workers in grant.parts:
            devices = workers * job.devices
            by_owner = self._owned.setdefault(pool, {})
            key = (grant.node, job.priority)
            by_owner[key] = by_owner.get(key, 0) + devices
            if job.protected and not grant.growth:
                self._protected.setdefault(pool, []).append(_GrantedDevices(grant, devices))

    def _list_protected(self, job: PlannedJob, why: NoRoom, pool: int, missing: int) -> Iterator[Protected]:
        """Yield all jobs that lose their protection before enough may be taken; none if that is not enough.

        Devices that one waiting job may take then are not named to the next job, which comes after it.
        """
        reach = set(job.path[: job.level + 1])
        bound = next((node for node in job.path if self._names[node] == why.node), None)
        chosen: list[tuple[_GrantedDevices, int]] = []
        for place in self._protected.get(pool, ()):
            other = place.grant.job
            left = place.devices - self._promised.get(id(place.grant), 0)
            within = place.grant.node in reach and (bound is None or bound in other.path)
            if left > 0 and within and other.priority < job.priority:
                chosen.append((place, min(left, missing)))
                missing -= left
                if missing <= 0:
                    break
        if missing > 0:
            return
        for place, devices in chosen:
            state = place.grant.job.state
            self._promised[id(place.grant)] = self._promised.get(id(place.grant), 0) + devices
            yield Protected(
                job=state.name,
                by=job.state.name,
                pool=why.pool,
                devices=devices,
                until_s=(state.started_s or 0.0) + self._cluster.snapshot.rules.min_run_time_s,
            )

    def _count_owned_by_others(self, job: PlannedJob, pool: int) -> int:
        """Return the devices that jobs of a lower priority have on quotas of other teams and cohorts."""
        key = (job.path, job.priority, pool)
        if key not in self._owned_by_others:
            self._owned_by_others[key] = sum(
                devices
                for (node, priority), devices in self._owned.get(pool, {}).items()
                if priority < job.priority and node not in job.path
            )
        return self._owned_by_others[key]
