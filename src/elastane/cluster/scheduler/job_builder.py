"""The builder of planned jobs: the pools, sizes and rights of each job of a snapshot."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from elastane.cluster.nouns.cluster import JobState, Snapshot
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.plans import NeverFits, NoSuchPool, PoolChanged, Why
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.eligibility import (
    PoolGroup,
    find_pool_groups,
    find_sites_without_pool,
    needs_one_machine,
)
from elastane.cluster.scheduler.limits import (
    WorkerLimit,
    compute_waiting_since_s,
    compute_worker_limit,
    find_size_for_speed,
    find_written_off,
    is_cooling_down,
)
from elastane.cluster.scheduler.planned_job import PlannedJob
from elastane.cluster.scheduler.quota_ledger import QuotaLedger
from elastane.cluster.scheduler.quota_tree import Path
from elastane.cluster.scheduler.sizes import Sizes, find_smallest_size, list_legal_sizes, round_down_to_size
from elastane.cluster.scheduler.speed_model import ONE_NODE, SpeedModel, build_speed_model

PoolKey = TypeVar("PoolKey", int, str)


class _HeldWorkers(NamedTuple):
    """Workers that may stay where they are.

    Args:
        dead: how many of them are known to be dead.
        written_off: why the plan waits for others no longer; None: it waits for all.
    """

    by_pool: dict[int, int]
    dead: int
    written_off: Why | None


class JobBuilder:
    """Builds planned jobs, and remembers what many jobs have in common.

    Args:
        pools: index of each pool.
        paths: path of each team in the quota tree.
        unreserved: a ledger without any job, as if the calendar were empty.
        empty: a ledger without any job.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        pools: dict[str, int],
        paths: dict[str, Path],
        unreserved: QuotaLedger,
        empty: QuotaLedger,
    ) -> None:
        self._snapshot, self._pools, self._paths = snapshot, pools, paths
        self._unreserved, self._empty = unreserved, empty
        self._priorities = {priority.name: priority.value for priority in snapshot.priorities}
        self._default_priority = max(
            (priority.value for priority in snapshot.priorities if priority.default), default=0
        )
        self._sites = {team.name: team.sites for team in snapshot.teams}
        self._groups: dict[object, tuple[PoolGroup, ...]] = {}
        self._node_workers: dict[object, int] = {}
        self._most: dict[object, tuple[int, int]] = {}

    def build(self, state: JobState) -> PlannedJob:
        """Return the planned job for a job of the snapshot, without any grant."""
        spec, rules, now_s = state.spec, self._snapshot.rules, self._snapshot.now_s
        path, size = self._paths[spec.team], state.workers
        level = len(path) - 1 if spec.borrow else 0
        candidates = self._find_groups(state)
        node_workers = self._count_node_workers(spec, candidates)
        # The processes of a worker compute as many virtual ranks at the same time.
        shares = state.virtual_ranks // spec.processes
        sizes = list_legal_sizes(spec.elastic_policy, node_workers, shares)
        speed_model = build_speed_model(state.speeds, node_workers, state.weights, state.prior)
        groups, limit, awaits_reservation = self._find_room(
            state, sizes, candidates, speed_model, path=path, level=level
        )
        held = self._find_held(state, sizes)
        held_workers, minimum = sum(held.by_pool.values()), find_smallest_size(sizes)
        started_s = state.started_s if size and state.started_s is not None else None
        patient_until_s = compute_waiting_since_s(state) + rules.patience_s
        return PlannedJob(
            state=state,
            number=state.number,
            path=path,
            level=level,
            priority=self._priorities.get(spec.priority_class, self._default_priority),
            groups=groups,
            devices=spec.worker_devices,
            sizes=sizes,
            speed_model=speed_model,
            minimum=minimum,
            max_workers=limit.workers,
            limit_reason=limit.why,
            written_off=held.written_off,
            held=held.by_pool,
            draining=self._find_draining(state),
            size=size,
            held_workers=held_workers,
            held_minimum=choose_minimum(held.by_pool, minimum),
            live_workers=held_workers - held.dead,
            promised=_find_promised_size(state, sizes, limit.workers),
            cooling_down=is_cooling_down(state, rules, now_s),
            protected=started_s is not None and now_s < started_s + rules.min_run_time_s,
            # The job cannot use the rest that a reservation leaves before the reservation is over.
            out_of_patience=not size and not awaits_reservation and now_s >= patient_until_s,
            awaits_reservation=awaits_reservation,
            needed_workers=_find_needed_workers(state, sizes, speed_model, now_s),
            work_s=_estimate_work_s(state, speed_model),
            resize_log=state.resize_s / rules.horizon_s,
        )

    def _find_room(
        self,
        state: JobState,
        sizes: Sizes,
        groups: tuple[PoolGroup, ...],
        speed_model: SpeedModel,
        *,
        path: Path,
        level: int,
    ) -> tuple[tuple[PoolGroup, ...], WorkerLimit, bool]:
        """Return the groups a job may use, its size limit, and whether only a reservation is in its way."""
        pools, rules, now_s = self._snapshot.pools, self._snapshot.rules, self._snapshot.now_s
        price = 0.0
        if state.spec.budget is not None:
            prices = (pools[pool].price for group in groups for pool in group.for_minimum)
            price = max(prices, default=0.0)
        limit = compute_worker_limit(state, sizes, rules, speed_model, price=price, now_s=now_s)
        if limit.workers and not groups:
            return (
                groups,
                WorkerLimit(
                    0, next(find_changed_pools(state, groups, self._pools), self._make_no_such_pool(state))
                ),
                False,
            )
        if not limit.workers or state.workers:
            return groups, limit, False
        minimum = find_smallest_size(sizes)
        devices = state.spec.worker_devices
        most = [self._count_most_workers(path, level, group, devices) for group in groups]
        awaits_reservation = max(now for _, now in most) < minimum
        fits = max(unreserved for unreserved, _ in most)
        if fits < minimum:
            limit = WorkerLimit(0, NeverFits(need=minimum * devices, most=fits * devices))
            return groups, limit, awaits_reservation
        # In the other groups it would wait, and hold places that it can never use.
        fitting = tuple(group for group, (ever, _) in zip(groups, most, strict=True) if ever >= minimum)
        return fitting, limit, awaits_reservation

    def _find_groups(self, state: JobState) -> tuple[PoolGroup, ...]:
        """Return the groups of pools that a job may use.

        A job with workers keeps kind and place, so it has only the group that most of them are in. It has
        none if their pools were removed, or changed so that they no longer have what it asks for.
        """
        spec = state.spec
        wanted, data = spec.resources_per_worker, spec.data
        where = tuple(sorted(holding.pool for holding in state.holds)) if state.holds else ()
        labels = tuple(sorted(data.labels.items())) if data.labels else ()
        # The size of a job matters for its pools only if all its workers are on one machine.
        together = spec.elastic_policy.limits if needs_one_machine(spec) else None
        terms = (spec.spot, spec.image, spec.processes > 1, together)
        allowed = self._sites.get(spec.team, ())
        places = (data.regions, data.sites, allowed)
        key = (wanted.kinds, spec.worker_devices, places, labels, where, terms)
        if key not in self._groups:
            found = find_pool_groups(spec, self._snapshot.pools, self._snapshot.engines, allowed)
            if where:
                indices = {self._pools[name] for name in where if name in self._pools}
                found = tuple(group for group in found if indices & set(group.for_minimum))
            self._groups[key] = found
        found = self._groups[key]
        if where and len(found) > 1:
            held = {
                self._pools[holding.pool]: holding.workers
                for holding in state.holds
                if holding.pool in self._pools
            }
            return (max(found, key=lambda group: sum(held.get(pool, 0) for pool in group.for_minimum)),)
        return found

    def _make_no_such_pool(self, state: JobState) -> NoSuchPool:
        spec, pools, engines = state.spec, self._snapshot.pools, self._snapshot.engines
        allowed = self._sites.get(spec.team, ())
        if allowed and find_pool_groups(spec, pools, engines):
            return NoSuchPool(allowed=allowed)
        if spec.image and find_pool_groups(msgspec.structs.replace(spec, image=""), pools, engines):
            return NoSuchPool(image=spec.image)
        if spec.data.sites:
            return NoSuchPool(sites=find_sites_without_pool(spec, pools, engines) or spec.data.sites)
        has_engines = any(pool.engine for pool in pools)
        return NoSuchPool(one_machine=has_engines and needs_one_machine(spec))

    def _count_node_workers(self, spec: JobSpec, groups: tuple[PoolGroup, ...]) -> int:
        """Return the workers that fit on one node, in each pool of the group that the job tries first."""
        key = groups, spec.worker_devices
        if key not in self._node_workers:
            self._node_workers[key] = _compute_node_workers(*key, self._snapshot.pools)
        return self._node_workers[key]

    def _find_held(self, state: JobState, sizes: Sizes) -> _HeldWorkers:
        written_off = find_written_off(state, sizes, self._snapshot.now_s)
        excess = state.workers - written_off.left if written_off is not None else 0
        held: dict[int, int] = {}
        dead = 0
        for holding in state.holds:
            lost = min(excess, holding.absent)
            excess -= lost
            stay = holding.workers - holding.leaving - lost
            if holding.pool in self._pools and stay > 0:
                held[self._pools[holding.pool]] = stay
                dead += min(stay, max(0, holding.failed - lost))
        loses = written_off is not None and written_off.left != state.workers
        return _HeldWorkers(held, dead, written_off.why if written_off is not None and loses else None)

    def _find_draining(self, state: JobState) -> dict[int, int]:
        draining: dict[int, int] = {}
        for gone in state.draining:
            if gone.workers > gone.leaving:
                pool = self._pools.get(gone.pool, -1)
                draining[pool] = draining.get(pool, 0) + gone.workers - gone.leaving
        return draining

    def _count_most_workers(self, path: Path, level: int, group: PoolGroup, devices: int) -> tuple[int, int]:
        """Return the workers that fit in an otherwise empty cluster: without reservations, and now."""

        def count_workers(ledger: QuotaLedger) -> int:
            room = {
                pool: max(0, int(min(ledger.find_room(path, level, pool, new=True), ledger.growable[pool])))
                // devices
                for pool in group.for_minimum
            }
            reached = all(any(room[pool] for pool in site) for site in group.sites)
            return sum(room.values()) if reached else 0

        key = (path[0], level, group, devices)
        if key not in self._most:
            self._most[key] = count_workers(self._unreserved), count_workers(self._empty)
        return self._most[key]


def find_changed_pools(
    state: JobState, groups: tuple[PoolGroup, ...], pools: dict[str, int]
) -> Iterator[PoolChanged]:
    """Yield a reason for each pool with workers of the job that is in none of the groups it may use."""
    suitable = {pool for group in groups for pool in group.for_minimum}
    for holding in state.holds:
        if pools.get(holding.pool) not in suitable:
            yield PoolChanged(pool=holding.pool, workers=holding.workers)


def _compute_node_workers(groups: tuple[PoolGroup, ...], devices: int, pools: Sequence[Pool]) -> int:
    if not groups:
        return 1
    on_node = min(pools[pool].devices_per_node for pool in groups[0].for_minimum)
    if sum(pools[pool].devices for group in groups for pool in group.for_minimum) <= on_node:
        return ONE_NODE
    return max(1, on_node // devices)


def choose_minimum(held: Mapping[PoolKey, int], minimum: int) -> dict[PoolKey, int]:
    """Return the workers by pool with which a job fills its minimum, of those that it holds."""
    chosen = {}
    for pool, workers in held.items():
        if minimum > 0:
            chosen[pool] = min(workers, minimum)
            minimum -= workers
    return chosen


def _find_promised_size(state: JobState, sizes: Sizes, most: int) -> int:
    """Return the size that the last plan promised to a running job; 0: none, or no more than it has."""
    is_owed = 0 < state.workers < state.promised <= most
    return state.promised if is_owed and round_down_to_size(sizes, state.promised) == state.promised else 0


def _find_needed_workers(state: JobState, sizes: Sizes, speed_model: SpeedModel, now_s: float) -> float:
    """Return the workers that meet the job's deadline; 0 if it has none or nothing can be predicted."""
    times = [time.timestamp() for time in (state.spec.deadline, state.spec.target.by) if time is not None]
    if not times or state.remaining is None or not state.speeds:
        return 0.0
    left_s = min(times) - now_s
    return (
        find_size_for_speed(state, sizes, speed_model, state.remaining / left_s) if left_s > 0 else math.inf
    )


def _estimate_work_s(state: JobState, speed_model: SpeedModel) -> float:
    """Return the work that is left, in seconds of one worker; 0 before the speed was measured.

    As much as was done, where nothing is known: jobs differ by orders of magnitude, so a job that has run for
    long will run for long (Tiresias, NSDI 2019). A job counts as short until it was measured.
    """
    left = state.trained if state.remaining is None else state.remaining
    return left / speed_model.compute_speed(1) if state.speeds or state.prior else 0.0
