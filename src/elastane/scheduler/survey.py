"""From a snapshot to what the rules work on: pools and nodes by index, and a claimant for each job."""

import math
from collections.abc import Container, Iterator
from typing import NamedTuple

from elastane.api.cluster import JobState, Snapshot
from elastane.api.plans import NeverFits, NoSuchPool, PoolChanged
from elastane.api.pools import Restriction
from elastane.api.quotas import Team
from elastane.api.reservations import Reservation
from elastane.scheduler.accounts import Accounts, Path, Tree, grow_tree
from elastane.scheduler.calendar import peak
from elastane.scheduler.claimant import Claimant
from elastane.scheduler.eligibility import Group, groups
from elastane.scheduler.goodput import Curve, fitted
from elastane.scheduler.limits import cooling, given_up, limit, paced, waiting_since_s
from elastane.scheduler.sizes import smallest


class Ground(NamedTuple):
    """A snapshot, indexed.

    Args:
        snapshot: as it came.
        pools: index of each pool, by name.
        healthy: of each pool, devices that stay or may come back.
        reserved: of each pool, the reservations that will hold most of it, with when they begin.
        growable: of each pool, devices that something new may be put on.
        booked: of each pool, the reservations that leave no more than that, with when they begin.
        tree: who may use what.
        claimants: one per job, oldest first.
    """

    snapshot: Snapshot
    pools: dict[str, int]
    healthy: tuple[int, ...]
    reserved: tuple[tuple[tuple[Reservation, float], ...], ...]
    growable: tuple[int, ...]
    booked: tuple[tuple[tuple[Reservation, float], ...], ...]
    tree: Tree
    claimants: tuple[Claimant, ...]


def survey(snapshot: Snapshot, excused: Container[int]) -> Ground:
    """Index the snapshot; everything after this is arithmetic.

    Args:
        snapshot: as it came.
        excused: numbers of jobs whose failed workers count as if their devices were there.
    """
    pools = {pool.name: i for i, pool in enumerate(snapshot.pools)}
    now_s, calendar = snapshot.now_s, snapshot.reservations
    soon = [peak(calendar, name, now_s) for name in pools]
    later = [peak(calendar, name, now_s, snapshot.rules.horizon_s) for name in pools]
    healthy = _healthy(snapshot, excused)
    capacity = [max(0, there - gone) for there, (gone, _) in zip(healthy, soon, strict=True)]
    growable = tuple(max(0, there - gone) for there, (gone, _) in zip(healthy, later, strict=True))
    known = {team.name for team in snapshot.teams}
    # Whoever was never named owns nothing, and has a share like anybody else.
    unknown = sorted({state.spec.team for state in snapshot.jobs} - known)
    teams = (*snapshot.teams, *(Team(name=name) for name in unknown))
    tree = grow_tree(snapshot.cohorts, teams, pools, capacity)
    paths = {team.name: tree.paths[i] for i, team in enumerate(teams, start=1 + len(snapshot.cohorts))}
    unreserved = grow_tree(snapshot.cohorts, teams, pools, healthy)
    desk = _Desk(snapshot, pools, paths, Accounts(unreserved, healthy), Accounts(tree, growable))
    ordered = sorted(snapshot.jobs, key=lambda state: state.number)
    return Ground(
        snapshot,
        pools,
        tuple(healthy),
        tuple(holders for _, holders in soon),
        growable,
        tuple(holders for _, holders in later),
        tree,
        tuple(desk.claimant(state) for state in ordered),
    )


def lacking(snapshot: Snapshot) -> dict[str, int]:
    """Devices that jobs hold or have yet to give back and that are not there, by pool."""
    found = {pool.name: min(0, pool.leaving - pool.devices) for pool in snapshot.pools}
    for state in snapshot.jobs:
        devices = state.spec.resources_per_worker.devices
        there = [(one.pool, one.workers - one.leaving) for one in state.holds]
        there += [(one.pool, one.workers - one.leaving) for one in state.draining]
        for pool, workers in there:
            if pool in found:
                found[pool] += workers * devices
    return {pool: devices for pool, devices in found.items() if devices > 0}


def restriction_of(snapshot: Snapshot, pool: str) -> Restriction | None:
    """Return the tightest restriction of a pool; None: there is none."""
    found = [one for one in snapshot.restrictions if one.pool == pool]
    return min(found, key=lambda one: one.limit, default=None)


def _healthy(snapshot: Snapshot, excused: Container[int]) -> list[int]:
    """Of each pool the devices that stay, and those that are gone with failed workers of excused jobs."""
    failed: dict[str, int] = {}
    for state in snapshot.jobs:
        for holding in state.holds if state.number in excused else ():
            devices = holding.failed * state.spec.resources_per_worker.devices
            failed[holding.pool] = failed.get(holding.pool, 0) + devices
    away = lacking(snapshot) if failed else {}
    return [
        max(0, pool.devices - pool.leaving) + min(failed.get(pool.name, 0), away.get(pool.name, 0))
        for pool in snapshot.pools
    ]


class _Desk:
    """Makes claimants, remembering what many jobs have in common.

    Args:
        snapshot: as it came.
        pools: index of each pool.
        paths: of each team.
        unreserved: accounts without any job, and as if the calendar were empty.
        empty: accounts without any job.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        pools: dict[str, int],
        paths: dict[str, Path],
        unreserved: Accounts,
        empty: Accounts,
    ) -> None:
        self.snapshot, self.pools, self.paths = snapshot, pools, paths
        self.unreserved, self.empty = unreserved, empty
        self.priorities = {one.name: one.value for one in snapshot.priorities}
        self.default = max((one.value for one in snapshot.priorities if one.default), default=0)
        self.groups: dict[object, tuple[Group, ...]] = {}
        self.room: dict[object, tuple[int, int]] = {}

    def claimant(self, state: JobState) -> Claimant:
        spec, rules, now_s = state.spec, self.snapshot.rules, self.snapshot.now_s
        policy = spec.elastic_policy
        path = self.paths[spec.team]
        level = len(path) - 1 if spec.borrow else 0
        found = self.groups_of(state)
        curve = fitted(state.speeds)
        price = max((self.snapshot.pools[p].price for group in found for p in group.for_minimum), default=0.0)
        most, why = limit(state, rules, curve, price, now_s)
        minimum, size, devices = smallest(policy), state.workers, spec.resources_per_worker.devices
        reserved = False
        if most and not found:
            most, why = 0, next(elsewhere(state, found, self.pools), NoSuchPool())
        elif most and not size:
            room = [self.most(path, level, group, devices) for group in found]
            fits = max(ever for ever, _ in room)
            reserved = max(now for _, now in room) < minimum
            if fits < minimum:
                most, why = 0, NeverFits(need=minimum * devices, most=fits * devices)
            else:
                # In the others it would wait, and hold what it can never use.
                found = tuple(group for group, (ever, _) in zip(found, room, strict=True) if ever >= minimum)
        absent = given_up(state, now_s)
        excess = size - absent.left if absent is not None else 0
        held: dict[int, int] = {}
        dead = 0
        for holding in state.holds:
            lost = min(excess, holding.absent)
            excess -= lost
            stay = holding.workers - holding.leaving - lost
            if holding.pool in self.pools and stay > 0:
                held[self.pools[holding.pool]] = stay
                dead += min(stay, max(0, holding.failed - lost))
        draining: dict[int, int] = {}
        for gone in state.draining:
            if gone.workers > gone.leaving:
                pool = self.pools.get(gone.pool, -1)
                draining[pool] = draining.get(pool, 0) + gone.workers - gone.leaving
        started_s = state.started_s if size and state.started_s is not None else None
        return Claimant(
            state=state,
            number=state.number,
            path=path,
            level=level,
            priority=self.priorities.get(spec.priority_class, self.default),
            groups=found,
            devices=devices,
            curve=curve,
            minimum=minimum,
            limit=most,
            limited_by=why,
            given_up=None if absent is None or absent.left == size else absent.why,
            held=held,
            draining=draining,
            size=size,
            stays=sum(held.values()),
            lives=sum(held.values()) - dead,
            cooling=cooling(state, rules, now_s),
            protected=started_s is not None and now_s < started_s + rules.min_run_time_s,
            # What a reservation leaves would be of no use to it before that is over.
            patient=not size and not reserved and now_s >= waiting_since_s(state) + rules.patience_s,
            reserved=reserved,
            needed=_needed(state, curve, now_s),
            resize_log=state.resize_s / rules.horizon_s,
        )

    def groups_of(self, state: JobState) -> tuple[Group, ...]:
        """Of a job with workers only the group most of them are in: it keeps kind and site while it runs.

        No group, if the pools where they are were removed or changed so that they will not do any more.
        """
        spec = state.spec
        wanted, data = spec.resources_per_worker, spec.data
        where = tuple(sorted(holding.pool for holding in state.holds)) if state.holds else ()
        labels = tuple(sorted(data.labels.items())) if data.labels else ()
        key = (wanted.kinds, wanted.devices, spec.spot, data.regions, labels, where)
        if key not in self.groups:
            found = groups(spec, self.snapshot.pools)
            if where:
                indices = {self.pools[name] for name in where if name in self.pools}
                found = tuple(one for one in found if indices & set(one.for_minimum))
            self.groups[key] = found
        found = self.groups[key]
        if where and len(found) > 1:
            held = {self.pools[one.pool]: one.workers for one in state.holds if one.pool in self.pools}
            return (max(found, key=lambda group: sum(held.get(pool, 0) for pool in group.for_minimum)),)
        return found

    def most(self, path: Path, level: int, group: Group, devices: int) -> tuple[int, int]:
        """Workers that a job could have if nobody else had any: without reservations, and now."""

        def room(accounts: Accounts) -> int:
            return sum(
                max(0, int(min(accounts.room(path, level, p), accounts.growable[p]))) // devices
                for p in group.for_minimum
            )

        key = (path[0], level, group, devices)
        if key not in self.room:
            self.room[key] = room(self.unreserved), room(self.empty)
        return self.room[key]


def elsewhere(state: JobState, groups: tuple[Group, ...], pools: dict[str, int]) -> Iterator[PoolChanged]:
    """Workers of the job that are in none of the groups that it may use."""
    suitable = {pool for group in groups for pool in group.for_minimum}
    for one in state.holds:
        if pools.get(one.pool) not in suitable:
            yield PoolChanged(pool=one.pool, workers=one.workers)


def _needed(state: JobState, curve: Curve, now_s: float) -> float:
    """Workers it takes to be done in time; 0 where nobody asked or nobody knows."""
    times = [time.timestamp() for time in (state.spec.deadline, state.spec.target.by) if time is not None]
    if not times or state.remaining is None or not state.speeds:
        return 0.0
    left_s = min(times) - now_s
    return paced(state, curve, state.remaining / left_s) if left_s > 0 else math.inf
