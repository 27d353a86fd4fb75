"""Decisions: from the change of a job to its action, its drain time and its reasons."""

from collections.abc import Iterator

from elastane.cluster.nouns.cluster import JobState
from elastane.cluster.nouns.plans import (
    Action,
    AwaitsArrival,
    AwaitsRepair,
    CapacityGone,
    Decision,
    Drains,
    MinimumFits,
    NeverFits,
    NodesLeave,
    NoRoom,
    OwnDrain,
    Reserved,
    Restricted,
    RetryLater,
    Why,
    WorthMore,
)
from elastane.cluster.scheduler.allocation import Allocation
from elastane.cluster.scheduler.changes import JobChange
from elastane.cluster.scheduler.cluster_index import ClusterIndex, find_restriction
from elastane.cluster.scheduler.job_builder import find_changed_pools
from elastane.cluster.scheduler.limits import compute_repair_deadline_s
from elastane.cluster.scheduler.loss_reasons import LossReasons
from elastane.cluster.scheduler.planned_job import PlannedJob
from elastane.cluster.scheduler.wait_reasons import WaitReasons


class DecisionMaker:
    """Makes the decisions of one plan, in the order of the jobs.

    The order matters: devices that one job waits for are not named to the next job.

    Args:
        cluster: the index; its jobs carry their grants.
    """

    def __init__(self, cluster: ClusterIndex, allocation: Allocation) -> None:
        self._cluster = cluster
        self._losses = LossReasons(cluster, allocation)
        self._waits = WaitReasons(cluster, allocation)

    def decide(self, job: PlannedJob, change: JobChange) -> Decision:
        """Return the decision for a job."""
        action = _find_action(job, change)
        names = tuple(self._cluster.pools)
        match action:
            case "move" if change.cheaper is not None:
                why: tuple[Why, ...] = (change.cheaper,)
            case "start" | "grow":
                why = self._explain_more(job, change)
            case "shrink" | "preempt" | "move":
                why = self._explain_less(job, change)
            case "keep" | "wait":
                why = self._explain_no_change(job, change)
        return Decision(
            job=job.state.name,
            action=action,
            workers={names[pool]: workers for pool, workers in change.workers.items()},
            drain=change.drain,
            drain_s=self._compute_drain_s(job, change, why),
            entitled=job.entitled,
            why=why,
            ceiling=_find_ceiling(job) if change.size else None,
        )

    def _compute_drain_s(self, job: PlannedJob, change: JobChange, why: tuple[Why, ...]) -> float:
        """Return the time that the job asks for, or less if its nodes or devices are taken away earlier."""
        graceful_s = job.state.spec.elastic_policy.graceful_shutdown_timeout_in_seconds
        cluster, now_s = self._cluster, self._cluster.snapshot.now_s
        doomed = {reason.pool for reason in why if isinstance(reason, NodesLeave | CapacityGone)}
        left = [
            max(0.0, pool.gone_at_s - now_s)
            for pool in cluster.snapshot.pools
            if pool.name in doomed and pool.leaving and pool.gone_at_s is not None
        ]
        for name in change.drain:
            pool = cluster.pools.get(name, -1)
            if pool >= 0 and self._losses.is_over_capacity(pool):
                left += [at_s - now_s for _, at_s in cluster.reserved[pool] if at_s > now_s]
        return min([graceful_s, *left])

    def _explain_more(self, job: PlannedJob, change: JobChange) -> tuple[Why, ...]:
        names = self._cluster.tree.names
        found: list[Why] = []
        if job.size < job.minimum:
            found += [MinimumFits(node=names[grant.node]) for grant in job.grants if not grant.growth]
        before = max(job.size, job.minimum)
        if change.size > before:
            # The quota that pays last is the one that may be claimed back first.
            node = max((grant for grant in job.grants), key=lambda grant: grant.rank).node
            speedup = job.speed_model.compute_speed(change.size) / job.speed_model.compute_speed(before)
            found.append(WorthMore(node=names[node], speedup=speedup))
        return tuple(found)

    def _explain_less(self, job: PlannedJob, change: JobChange) -> tuple[Why, ...]:
        leave: list[Why] = [
            NodesLeave(pool=holding.pool, workers=holding.leaving)
            for holding in job.state.holds
            if holding.leaving
        ]
        if job.max_workers:
            leave += find_changed_pools(job.state, job.groups, self._cluster.pools)
        if job.written_off is not None:
            leave.append(job.written_off)
        found = tuple(dict.fromkeys((*leave, *self._losses.explain_loss(job))))
        if not job.entitled and job.wait_reason is not None:
            return (*found, job.wait_reason)
        return found or self._explain_no_change(job, change)

    def _explain_no_change(self, job: PlannedJob, change: JobChange) -> tuple[Why, ...]:
        cluster = self._cluster
        if not job.max_workers:
            return (job.limit_reason, *self._list_restrictions(job, job.limit_reason))
        if not job.entitled and job.wait_reason is not None:
            wait = job.wait_reason
            obstacles = self._waits.explain_wait(job, wait)
            return (
                wait,
                *self._list_reservations(job, wait),
                *self._list_restrictions(job, wait),
                *obstacles,
            )
        own = sum(place.workers - place.leaving for place in job.state.draining)
        if change.short and own:
            return (OwnDrain(workers=own),)
        if change.short:
            names = tuple(cluster.pools)
            return tuple(
                Drains(pool=names[pool], devices=workers * job.devices)
                for pool, workers in change.short.items()
            )
        ceiling = _find_ceiling(job)
        return (
            *_explain_absent_workers(job.state, cluster.snapshot.now_s),
            ceiling,
            *self._list_reservations(job, ceiling),
            *self._list_restrictions(job, ceiling),
        )

    def _list_reservations(self, job: PlannedJob, why: Why) -> Iterator[Reserved]:
        """Yield the reservations that take a part of the room that is missing."""
        if not isinstance(why, NoRoom) or why.node is not None:
            return
        cluster = self._cluster
        pools = [cluster.pools[why.pool]]
        if job.awaits_reservation:
            # Without them any of its pools might have room for it.
            pools += (pool for group in job.groups for pool in group.for_minimum)
        for pool in dict.fromkeys(pools):
            for reservation, at_s in cluster.booked[pool]:
                name = cluster.snapshot.pools[pool].name
                yield Reserved(
                    reservation=reservation.name, pool=name, devices=reservation.devices, at_s=at_s
                )

    def _list_restrictions(self, job: PlannedJob, why: Why) -> Iterator[Restricted]:
        """Yield the restrictions of pools in which room or quota is missing."""
        snapshot = self._cluster.snapshot
        if not snapshot.restrictions or not isinstance(why, NoRoom | NeverFits):
            return
        pools = tuple(self._cluster.pools)
        suitable = dict.fromkeys(pools[pool] for group in job.groups for pool in group.for_minimum)
        for pool in (why.pool,) if isinstance(why, NoRoom) else suitable:
            restriction = find_restriction(snapshot, pool)
            if restriction is not None:
                yield Restricted(restriction=restriction)


def _find_action(job: PlannedJob, change: JobChange) -> Action:
    size = change.size
    if not job.size:
        return "start" if size else "wait"
    if not size:
        return "preempt"
    if size != job.size:
        return "grow" if size > job.size else "shrink"
    return "move" if change.drain else "keep"


def _find_ceiling(job: PlannedJob) -> Why:
    return job.stop_reason or job.limit_reason


def _explain_absent_workers(state: JobState, now_s: float) -> Iterator[Why]:
    """Yield why some of the workers that a job keeps are not there."""
    starting = sum(holding.starting for holding in state.holds)
    repaired_s = compute_repair_deadline_s(state)
    if state.retry_at_s > now_s:
        # It keeps its devices while it waits to be tried again.
        yield RetryLater(at_s=state.retry_at_s)
    elif starting and state.starting_since_s is not None:
        until_s = state.starting_since_s + state.spec.elastic_policy.scaling_timeout_in_seconds
        yield AwaitsArrival(workers=starting, until_s=until_s)
    elif repaired_s > now_s:
        yield AwaitsRepair(until_s=repaired_s)
