"""Growth: devices that are left after the minimums, handed out one legal size at a time, in order of right.

On the quota of one node the next step is that of

1. the higher priority;
2. a job that would miss its deadline at the size it has;
3. a job that was resized a moment ago, for the workers it already holds;
4. the cohort, then the team, with the smaller dominant share. New workers of the step count in it, and those
   that the job already has do not, so that large steps do not take turns;
5. the job that a device speeds up most, in proportion. Workers that a job already holds count for more, by
   what a resize would cost, so that a swap must earn that back within the horizon.

A job stops growing when the next worker is not worth its devices, or when no size in reach earns back a
resize.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from elastane.cluster.nouns.config import SchedulingRules
from elastane.cluster.nouns.plans import NotWorth, ResizeTooDear
from elastane.cluster.scheduler.allocation import Allocation
from elastane.cluster.scheduler.minimums import explain_no_room
from elastane.cluster.scheduler.order import compute_shares
from elastane.cluster.scheduler.placement import fill_held, find_spared_pools, place_growth
from elastane.cluster.scheduler.planned_job import PlannedJob
from elastane.cluster.scheduler.sizes import find_next_size, round_down_to_size

HELD_WORTH = 1.1
"""Workers that a job holds are worth a tenth more, so that noise in measured speeds moves no job."""

HELD_EFFICIENCY = 0.5
"""Part of `SchedulingRules.worth` below which a job gives its workers back."""

Key: TypeAlias = tuple[int, bool, bool, float, int]
"""Priority (negative), meets its deadline, not settled, worth per device (negative), number of the job."""


class GrowthStep(NamedTuple):
    """From one size of a job to the next.

    Args:
        key: its position in the order, shares aside.
        workers: how many more.
        held: the job has these workers already.
    """

    key: Key
    workers: int
    held: bool


def grant_growth(
    allocation: Allocation, node: int, jobs: Iterable[PlannedJob], rules: SchedulingRules
) -> None:
    """Let jobs that have their minimum grow on the quota of ``node``.

    Args:
        node: the node that owns the quota.
        jobs: jobs below the node.
    """
    queues = _build_queues(allocation, node, jobs, rules)
    turns = [(_find_turn(allocation, node, queue, rules), team) for team, queue in queues.items()]
    heapq.heapify(turns)
    while turns:
        turn, team = turns[0]
        queue = queues[team]
        step, job = queue[0]
        if len(turns) > 1 and job.path.index(node) > 1:
            now = _find_turn(allocation, node, queue, rules)
            if now > turn:
                # The share of its cohort has grown meanwhile.
                heapq.heapreplace(turns, (now, team))
                if turns[0][1] != team:
                    continue
        next_step = _grant_step(allocation, node, job, step, rules)
        if next_step is None:
            heapq.heappop(queue)
        else:
            heapq.heapreplace(queue, (next_step, job))
        if not queue:
            heapq.heappop(turns)
        elif len(turns) > 1:
            heapq.heapreplace(turns, (_find_turn(allocation, node, queue, rules), team))


def _build_queues(
    allocation: Allocation, node: int, jobs: Iterable[PlannedJob], rules: SchedulingRules
) -> dict[int, list[tuple[GrowthStep, PlannedJob]]]:
    """Return a heap of next steps for each team. Numbers of jobs are unique, so no two jobs are compared."""
    queues: dict[int, list[tuple[GrowthStep, PlannedJob]]] = {}
    idle: dict[int, bool] = {}
    for job in jobs:
        path = job.path
        if path[0] not in idle:
            idle[path[0]] = allocation.ledger.has_idle_device(path, path.index(node))
        if not idle[path[0]] and node != path[job.level]:
            # Nothing is left for its team; the reason is given for the last quota that the job may use.
            continue
        step = _find_next_step(job, node, rules)
        if step is not None:
            queues.setdefault(job.path[0], []).append((step, job))
    for queue in queues.values():
        heapq.heapify(queue)
    return queues


def _grant_step(
    allocation: Allocation, node: int, job: PlannedJob, step: GrowthStep, rules: SchedulingRules
) -> GrowthStep | None:
    """Grant a step if it fits, and return the job's next one."""
    level = job.path.index(node)
    parts = place_growth(allocation, job, step.workers, level, held=step.held)
    if parts is None and step.held and level < job.level:
        # The rest of the step may stay on a quota further up. If a teammate grew here now, it could not.
        parts = fill_held(allocation, job, step.workers, level) or None
    if parts is not None:
        allocation.grant(job, node, parts, growth=True)
        return _find_next_step(job, node, rules, new_only=not step.held)
    if step.held:
        # The job may have a right to these workers on a quota further up, and to new ones on this quota.
        return _find_next_step(job, node, rules, new_only=True)
    if level == job.level:
        job.stop_reason = explain_no_room(
            allocation, job, step.workers, level, spared=find_spared_pools(job, level)
        )
    return None


def _find_turn(
    allocation: Allocation, node: int, queue: list[tuple[GrowthStep, PlannedJob]], rules: SchedulingRules
) -> tuple[object, ...]:
    """Return a team's position in the order, by the first job of its queue."""
    step, job = queue[0]
    more = 0 if step.held else step.workers * job.devices
    # The job may grow in another pool, but this is the one it tries first.
    pool = job.groups[0].for_growth[0]
    return (
        *step.key[:3],
        compute_shares(allocation, job, node, rules.fairness_grain, pool=pool, more=more),
        *step.key[3:],
    )


def _find_next_step(
    job: PlannedJob, node: int, rules: SchedulingRules, *, new_only: bool = False
) -> GrowthStep | None:
    """Return the step to a job's next size; None, with the reason in ``stop_reason``, if there is none.

    Args:
        node: the node that would pay.
        new_only: workers that the job has elsewhere cannot stay on this quota.
    """
    model = job.speed_model
    now, size, held = _find_next_size(job, node, new_only=new_only)
    if size is None or size > job.max_workers:
        job.stop_reason = job.limit_reason
        return None
    # A quota further down may have kept a part of the step. The rest is worth as much as the whole.
    begin = round_down_to_size(job.sizes, now)
    efficiency = model.compute_efficiency(begin, size)
    # Other jobs may already have given up what the last plan promised, so it counts like what the job holds.
    owed = held or size <= job.promised
    # A prediction alone takes no worker away: noise in it would take and give the same one again and again.
    keeps = owed and (job.cooling_down or size > model.largest)
    if efficiency < rules.worth * (HELD_EFFICIENCY if owed else 1.0) and not keeps:
        job.stop_reason = NotWorth(workers=size, efficiency=efficiency)
        return None
    if not held and now == job.held_workers == job.size:
        # The first step beyond what it has pays for the resize.
        size = _find_size_worth_resize(job, size) or (job.promised if owed else None)
        if size is None:
            job.stop_reason = ResizeTooDear(cost_s=job.state.resize_s, horizon_s=rules.horizon_s)
            return None
    worth = job.weight * model.compute_gain(begin, size) / (size - begin)
    if owed:
        gain = job.held_weight * HELD_WORTH * model.compute_gain(begin, size) + job.resize_log
        worth = gain / (size - begin)
    key = (
        -job.priority,
        begin >= job.needed_workers,
        not (held and job.cooling_down),
        -worth / job.devices,
        job.number,
    )
    return GrowthStep(key, size - now, held)


def _find_next_size(job: PlannedJob, node: int, *, new_only: bool) -> tuple[int, int | None, bool]:
    """Return the size from which a job grows, the next one, and whether it has these workers already."""
    now, limit = job.entitled, job.max_workers
    # Workers it has and that are not granted yet: new ones would be added to them.
    unplaced = 0 if job.loses_rest else job.held_workers - job.granted_in_place
    size = find_next_size(job.sizes, now)
    if not new_only and size is not None and size - now <= unplaced:
        return now, _choose_size(job, now, size, min(limit, now + unplaced)), True
    if node == job.path[job.level]:
        # The last quota it may use: workers that are not granted here are lost, and others may replace them.
        job.loses_rest = True
    else:
        now += unplaced
        size = find_next_size(job.sizes, now)
    return now, size if size is None else _choose_size(job, now, size, limit), False


def _choose_size(job: PlannedJob, now: int, following: int, most: int) -> int:
    """Return the legal size above ``now`` with the largest gain per worker.

    Between measured sizes each worker adds less than the one before, so only the following size and measured
    ones can be the best. The following size may be slower than the present one, and a measured one faster.

    Args:
        now: its size.
        following: the next legal size.
        most: the largest size to consider beside it.
    """
    model, now = job.speed_model, round_down_to_size(job.sizes, now)
    beyond = model.sizes[bisect_right(model.sizes, following) : bisect_right(model.sizes, most)]
    if not beyond:
        return following
    best, gain = following, model.compute_gain(now, following) / (following - now)
    for measured in beyond:
        size = round_down_to_size(job.sizes, measured)
        if size > best:
            by_size = model.compute_gain(now, size) / (size - now)
            if by_size > gain:
                best, gain = size, by_size
    return best


def _find_size_worth_resize(job: PlannedJob, size: int) -> int | None:
    """Return the smallest size from this one on that earns back a resize; None if none does."""
    larger: int | None = size
    while larger is not None and larger <= job.max_workers:
        if job.speed_model.compute_gain(job.held_workers, larger) >= job.resize_log:
            return larger
        larger = find_next_size(job.sizes, larger)
    return None
