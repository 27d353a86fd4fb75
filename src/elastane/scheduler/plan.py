"""The plan: what becomes of every job, and why."""

from collections.abc import Iterator
from typing import NamedTuple

from elastane.api.cluster import JobState, Snapshot
from elastane.api.plans import (
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
    Overdue,
    OwnDrain,
    Plan,
    Reserved,
    Restricted,
    RetryLater,
    Why,
    WorthMore,
)
from elastane.scheduler.causes import Causes
from elastane.scheduler.claimant import Claimant
from elastane.scheduler.entitlements import settle
from elastane.scheduler.limits import repaired_by_s
from elastane.scheduler.survey import Ground, elsewhere, restriction_of
from elastane.scheduler.transition import Change, transition
from elastane.scheduler.waiting import Obstacles


def plan(snapshot: Snapshot) -> Plan:
    """Decide for every job of the snapshot.

    Equal snapshots give equal plans. What one costs, and how that grows: ``docs/scheduling.md``.

    Raises:
        ValueError: cohorts that are each other's parents; `elastane.api.cluster_checks` refuses them earlier.
    """
    ground, books = settle(snapshot)
    changes = transition(ground)
    parts = _Parts(ground, Causes(ground, books), Obstacles(ground, books))
    return Plan(
        decisions=tuple(
            _decision(parts, claimant, change)
            for claimant, change in zip(ground.claimants, changes, strict=True)
        ),
        overdue=tuple(_overdue(snapshot)),
    )


class _Parts(NamedTuple):
    """What the reasons of a plan are made from."""

    ground: Ground
    causes: Causes
    obstacles: Obstacles


def _decision(parts: _Parts, claimant: Claimant, change: Change) -> Decision:
    ground, causes, _ = parts
    action = _action(claimant, change)
    names = tuple(ground.pools)
    ceiling = _ceiling(claimant) if change.size else None
    match action:
        case "start" | "grow":
            why = _more(ground, claimant, change)
        case "shrink" | "preempt" | "move":
            why = _less(parts, claimant, change)
        case "keep" | "wait":
            why = _still(parts, claimant, change)
    return Decision(
        job=claimant.state.name,
        action=action,
        workers={names[pool]: workers for pool, workers in change.workers.items()},
        drain=change.drain,
        drain_s=_drain_s(ground, causes, claimant, change, why),
        entitled=claimant.entitled,
        why=why,
        ceiling=ceiling,
    )


def _drain_s(
    ground: Ground, causes: Causes, claimant: Claimant, change: Change, why: tuple[Why, ...]
) -> float:
    """As long as the job asks for, unless what it is on is taken away before, or belongs to a reservation."""
    graceful_s = claimant.state.spec.elastic_policy.graceful_shutdown_timeout_in_seconds
    now_s = ground.snapshot.now_s
    doomed = {one.pool for one in why if isinstance(one, NodesLeave | CapacityGone)}
    left = [
        max(0.0, pool.gone_at_s - now_s)
        for pool in ground.snapshot.pools
        if pool.name in doomed and pool.leaving and pool.gone_at_s is not None
    ]
    for name in change.drain:
        pool = ground.pools.get(name, -1)
        if pool >= 0 and causes.over[pool]:
            left += [at_s - now_s for _, at_s in ground.reserved[pool] if at_s > now_s]
    return min([graceful_s, *left])


def _action(claimant: Claimant, change: Change) -> Action:
    size = change.size
    if not claimant.size:
        return "start" if size else "wait"
    if not size:
        return "preempt"
    if size != claimant.size:
        return "grow" if size > claimant.size else "shrink"
    return "move" if change.drain else "keep"


def _more(ground: Ground, claimant: Claimant, change: Change) -> tuple[Why, ...]:
    names = ground.tree.names
    found: list[Why] = []
    if claimant.size < claimant.minimum:
        found += [MinimumFits(node=names[grant.node]) for grant in claimant.grants if not grant.growth]
    before = max(claimant.size, claimant.minimum)
    if change.size > before:
        # The last quota that pays is the one that may be claimed back first.
        node = max((grant for grant in claimant.grants), key=lambda grant: grant.rank).node
        speedup = claimant.curve.speed(change.size) / claimant.curve.speed(before)
        found.append(WorthMore(node=names[node], speedup=speedup))
    return tuple(found)


def _less(parts: _Parts, claimant: Claimant, change: Change) -> tuple[Why, ...]:
    ground, causes, _ = parts
    leave: list[Why] = [
        NodesLeave(pool=holding.pool, workers=holding.leaving)
        for holding in claimant.state.holds
        if holding.leaving
    ]
    if claimant.limit:
        leave += elsewhere(claimant.state, claimant.groups, ground.pools)
    if claimant.given_up is not None:
        leave.append(claimant.given_up)
    found = tuple(dict.fromkeys((*leave, *causes.of(claimant))))
    if not claimant.entitled and claimant.waits is not None:
        return (*found, claimant.waits)
    return found or _still(parts, claimant, change)


def _still(parts: _Parts, claimant: Claimant, change: Change) -> tuple[Why, ...]:
    """Why nothing happens."""
    ground = parts.ground
    if not claimant.limit:
        return (claimant.limited_by, *_restricted(ground, claimant, claimant.limited_by))
    if not claimant.entitled and claimant.waits is not None:
        waits = claimant.waits
        obstacles = parts.obstacles.of(claimant, waits)
        return (waits, *_booked(ground, claimant, waits), *_restricted(ground, claimant, waits), *obstacles)
    own = sum(one.workers - one.leaving for one in claimant.state.draining)
    if change.short and own:
        return (OwnDrain(workers=own),)
    if change.short:
        names = tuple(ground.pools)
        return tuple(
            Drains(pool=names[pool], devices=workers * claimant.devices)
            for pool, workers in change.short.items()
        )
    ceiling = _ceiling(claimant)
    return (
        *_awaited(claimant.state, ground.snapshot.now_s),
        ceiling,
        *_booked(ground, claimant, ceiling),
        *_restricted(ground, claimant, ceiling),
    )


def _awaited(state: JobState, now_s: float) -> Iterator[Why]:
    """Why not all that it keeps is there."""
    starting = sum(holding.starting for holding in state.holds)
    repaired_s = repaired_by_s(state)
    if state.retry_at_s > now_s:
        # Its devices stay its own while it waits for its next try.
        yield RetryLater(at_s=state.retry_at_s)
    elif starting and state.starting_since_s is not None:
        until_s = state.starting_since_s + state.spec.elastic_policy.scaling_timeout_in_seconds
        yield AwaitsArrival(workers=starting, until_s=until_s)
    elif repaired_s > now_s:
        yield AwaitsRepair(until_s=repaired_s)


def _booked(ground: Ground, claimant: Claimant, why: Why) -> Iterator[Reserved]:
    """Reservations that have a part in it that a pool has no room."""
    if not isinstance(why, NoRoom) or why.node is not None:
        return
    pools = [ground.pools[why.pool]]
    if claimant.reserved:
        # Any of its pools might have room for it, were it not for them.
        pools += (pool for group in claimant.groups for pool in group.for_minimum)
    for pool in dict.fromkeys(pools):
        for one, at_s in ground.booked[pool]:
            name = ground.snapshot.pools[pool].name
            yield Reserved(reservation=one.name, pool=name, devices=one.devices, at_s=at_s)


def _restricted(ground: Ground, claimant: Claimant, why: Why) -> Iterator[Restricted]:
    """What has a part in it that its pools, or its quota of them, have no room."""
    if not ground.snapshot.restrictions or not isinstance(why, NoRoom | NeverFits):
        return
    pools = tuple(ground.pools)
    suitable = dict.fromkeys(pools[pool] for group in claimant.groups for pool in group.for_minimum)
    for pool in (why.pool,) if isinstance(why, NoRoom) else suitable:
        restriction = restriction_of(ground.snapshot, pool)
        if restriction is not None:
            yield Restricted(restriction=restriction)


def _ceiling(claimant: Claimant) -> Why:
    return claimant.stop or claimant.limited_by


def _overdue(snapshot: Snapshot) -> Iterator[Overdue]:
    for state in sorted(snapshot.jobs, key=lambda one: one.number):
        for one in state.draining:
            if one.deadline_s < snapshot.now_s:
                yield Overdue(job=state.name, pool=one.pool, workers=one.workers)
