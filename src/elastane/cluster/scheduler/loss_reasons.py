"""Reasons for a loss of workers: the job that gets them instead, or devices, quotas or rules that changed."""

import math
from dataclasses import dataclass

from elastane.cluster.nouns.plans import (
    Because,
    CapacityGone,
    GivesWay,
    NoRoom,
    NotWorth,
    QuotaReached,
    Reserved,
    ResizeTooDear,
    SizeNotLegal,
    Why,
)
from elastane.cluster.scheduler.allocation import Allocation
from elastane.cluster.scheduler.cluster_index import ClusterIndex, find_restriction
from elastane.cluster.scheduler.growth import HELD_EFFICIENCY
from elastane.cluster.scheduler.planned_job import PlannedJob, WorkerGrant
from elastane.cluster.scheduler.quota_ledger import QuotaLedger
from elastane.cluster.scheduler.quota_tree import CLUSTER
from elastane.cluster.scheduler.sizes import round_down_to_size


@dataclass(slots=True)
class DeviceGain:
    """Devices in one pool that a job is newly entitled to.

    Args:
        devices: those that were not yet named as the cause of a loss.
        whole: all of them.
    """

    grant: WorkerGrant
    devices: int
    whole: int


class LossReasons:
    """The reason for each loss: gains of other jobs, in order of right, and what the cluster lacks."""

    def __init__(self, cluster: ClusterIndex, allocation: Allocation) -> None:
        self._cluster, self._ledger = cluster, allocation.ledger
        self._before = QuotaLedger(cluster.tree, cluster.growable)
        self._gains: dict[int, list[DeviceGain]] = {}
        held = dict.fromkeys(cluster.pools.values(), 0)
        self._fewer = {pool.name: min(0, pool.leaving - pool.devices) for pool in cluster.snapshot.pools}
        for job in cluster.jobs:
            for holding in job.state.holds:
                if holding.pool in cluster.pools:
                    self._fewer[holding.pool] += (holding.workers - holding.leaving) * job.devices
            for pool, workers in job.held.items():
                held[pool] += workers * job.devices
                self._before.charge(job.path, pool, workers * job.devices)
            self._add_gains(job)
        for gains in self._gains.values():
            gains.sort(key=lambda gain: gain.grant.rank)
        self._gone = [max(0, held[pool] - cluster.healthy[pool]) for pool in cluster.pools.values()]
        self._over = [max(0, held[pool] - cluster.tree.capacity[pool]) for pool in cluster.pools.values()]

    def is_over_capacity(self, pool: int) -> bool:
        """Return whether jobs hold more of a pool than is left beside the announced reservations."""
        return self._over[pool] > 0

    def explain_loss(self, job: PlannedJob) -> tuple[Why, ...]:
        """Return why a job loses workers that could stay where they are; empty if it loses none."""
        lost = {pool: held - job.granted.get(pool, 0) for pool, held in job.held.items()}
        lost = {pool: workers for pool, workers in lost.items() if workers > 0}
        if not lost:
            return ()
        own = self._find_own_reason(job)
        if own is not None:
            return (own,)
        # In other pools they cannot stay whichever jobs are there.
        suitable = {pool for group in job.groups for pool in group.for_minimum}
        others = [
            why
            for pool, workers in lost.items()
            if pool in suitable
            for why in self._find_other_reasons(job, pool, workers * job.devices)
        ]
        return tuple(dict.fromkeys(others))

    def _add_gains(self, job: PlannedJob) -> None:
        left = dict(job.held)
        for grant in job.grants:
            for pool, workers in grant.parts:
                stay = min(workers, left.get(pool, 0))
                left[pool] = left.get(pool, 0) - stay
                if workers > stay:
                    devices = (workers - stay) * job.devices
                    gain = DeviceGain(grant, devices, devices)
                    self._gains.setdefault(pool, []).append(gain)

    def _find_own_reason(self, job: PlannedJob) -> Why | None:
        """Return a reason that lies in the job itself; None: there is none."""
        if not job.max_workers:
            return job.limit_reason
        if not job.entitled or job.entitled >= job.held_workers:
            return None
        if job.entitled == round_down_to_size(job.sizes, job.held_workers):
            return SizeNotLegal(workers=job.held_workers)
        stop, rules = job.stop_reason, self._cluster.snapshot.rules
        # For these reasons it would get no new workers, but keep those it has.
        keeps = isinstance(stop, NoRoom | ResizeTooDear)
        keeps = keeps or (isinstance(stop, NotWorth) and stop.efficiency >= HELD_EFFICIENCY * rules.worth)
        return None if keeps else stop

    def _find_other_reasons(self, job: PlannedJob, pool: int, devices: int) -> list[Why]:
        """Return why a job loses devices of a pool to other jobs, to a quota or to the pool itself."""
        ledger, name = self._ledger, tuple(self._cluster.pools)[pool]
        names, tree = ledger.tree.names, ledger.tree
        for node in job.path[: job.level]:
            if tree.compute_most(node, pool) < job.devices:
                # Not one worker may stay, whichever other jobs use the quota.
                return [QuotaReached(node=names[node], pool=name, limit=int(tree.compute_most(node, pool)))]
        room, node = ledger.find_limit(job.path, job.level, pool, new=False)
        by_node = room < ledger.free[pool] and node != CLUSTER
        fewer = self._explain_fewer_devices(pool, name)
        found = [] if by_node else list(fewer)
        by_others = devices - max(self._gone[pool], self._over[pool]) if found else devices
        if by_others > 0:
            found += self._find_gainers(job, pool, by_others, node if by_node else CLUSTER)
        if found:
            return found
        if node == CLUSTER and room < ledger.free[pool]:
            return [QuotaReached(node="", pool=name, limit=tree.limits.quota[CLUSTER][pool])]
        if fewer:
            # Other jobs of its quota keep their places where there is no longer room for all.
            return fewer
        if by_node and tree.compute_most(node, pool) < math.inf:
            return [QuotaReached(node=names[node], pool=name, limit=int(tree.compute_most(node, pool)))]
        if by_node and room < devices:
            return [NoRoom(pool=name, need=devices, room=max(0, int(room)), node=names[node])]
        return []

    def _explain_fewer_devices(self, pool: int, name: str) -> list[Why]:
        """Return why a pool has fewer devices than jobs hold there."""
        snapshot = self._cluster.snapshot
        found: list[Why] = []
        if self._gone[pool]:
            found.append(
                CapacityGone(
                    pool=name,
                    devices=self._fewer[name],
                    nodes=tuple(departure for departure in snapshot.departures if departure.pool == name),
                    restriction=find_restriction(snapshot, name),
                )
            )
        if self._over[pool] > self._gone[pool]:
            found += [
                Reserved(reservation=reservation.name, pool=name, devices=reservation.devices, at_s=at_s)
                for reservation, at_s in self._cluster.reserved[pool]
            ]
        return found

    def _find_gainers(self, loser: PlannedJob, pool: int, devices: int, node: int) -> list[Why]:
        """Return the jobs below ``node`` that get the devices, first those not yet named for another loss."""
        gains = self._gains.get(pool, ())
        named: dict[tuple[str, Because], int] = {}
        for gain in gains:
            if gain.devices <= 0:
                continue
            because = self._compare_rights(gain, loser, node)
            if because is not None:
                taken = min(gain.devices, devices)
                gain.devices -= taken
                devices -= taken
                winner = gain.grant.job.state.name
                named[winner, because] = named.get((winner, because), 0) + taken
                if devices <= 0:
                    break
        if named:
            return [
                self._build_loss(loser, pool, winner, taken, because)
                for (winner, because), taken in named.items()
            ]
        for gain in gains:
            because = self._compare_rights(gain, loser, node)
            if because is not None:
                winner = gain.grant.job.state.name
                return [self._build_loss(loser, pool, winner, min(gain.whole, devices), because)]
        return []

    def _build_loss(
        self, loser: PlannedJob, pool: int, winner: str, devices: int, because: Because
    ) -> GivesWay:
        tree, team = self._cluster.tree, loser.path[0]
        is_owners = because == "owner" and tree.limits.quota[team][pool] > 0
        return GivesWay(
            job=winner,
            pool=tuple(self._cluster.pools)[pool],
            devices=devices,
            because=because,
            team=tree.names[team] if is_owners else "",
            owned=tree.limits.quota[team][pool] if is_owners else 0,
        )

    def _compare_rights(self, gain: DeviceGain, loser: PlannedJob, node: int) -> Because | None:
        """Return what makes a gain below ``node`` a better right than the loser's; None: nothing does."""
        grant, winner = gain.grant, gain.grant.job
        if winner is loser or node not in winner.path:
            return None
        if grant.node not in loser.path:
            return "owner"
        if not grant.growth:
            spared = loser.entitled >= loser.minimum
            return "minimum" if spared or winner.priority > loser.priority else None
        if not loser.entitled or winner.priority < loser.priority:
            return None
        if winner.priority > loser.priority:
            return "priority"
        if winner.needed_workers > winner.size:
            return "deadline"
        for mine, others in zip(reversed(loser.path), reversed(winner.path), strict=False):
            if mine != others:
                share, share_before = (
                    self._ledger.compute_dominant_share(others),
                    self._before.compute_dominant_share(mine),
                )
                return "fairness" if share <= share_before else "goodput"
        return "goodput"
