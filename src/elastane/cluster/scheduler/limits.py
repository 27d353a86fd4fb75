"""The limits of a job itself: the most workers it may have, however many devices are idle, and why."""

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from elastane.cluster.nouns.cluster import JobState
from elastane.cluster.nouns.config import QUIET_S, SchedulingRules
from elastane.cluster.nouns.jobs import ElasticPolicy
from elastane.cluster.nouns.plans import (
    AtLargestUsefulSize,
    AtMaximum,
    AwaitsRepair,
    BudgetAllows,
    BudgetSpent,
    CoolingDown,
    DidNotArrive,
    DidNotReturn,
    Ends,
    MeasuredSlower,
    NotMeasured,
    OwnDrain,
    RetryLater,
    StoppedOften,
    Suspended,
    TargetMet,
    Why,
)
from elastane.cluster.scheduler.sizes import (
    Sizes,
    find_largest_size,
    find_next_size,
    find_smallest_size,
    round_down_to_size,
)
from elastane.cluster.scheduler.speed_model import SpeedModel

MAX_DOUBLINGS = 5
"""How often the cooldown doubles at most, for a job that is resized again and again."""

REST_COSTS = 2
"""After a change a job does not grow for this many times the cost of a resize, if that is longer than the
cooldown, and at most for the horizon."""

TOLERANCE = 0.1
"""A job keeps its size while that size is right for a tenth less or more than the speed or budget that is
asked for, so that noise in measured speeds resizes no job."""


class WrittenOff(NamedTuple):
    """Workers that the plan waits for no longer, and the size of the job without them."""

    left: int
    why: Why


class WorkerLimit(NamedTuple):
    """The most workers a job may have, and why."""

    workers: int
    why: Why


def compute_worker_limit(
    state: JobState,
    sizes: Sizes,
    rules: SchedulingRules,
    speed_model: SpeedModel,
    *,
    price: float,
    now_s: float,
) -> WorkerLimit:
    """Return the tightest of a job's own limits at the highest price; 0: it may not run."""
    spec = state.spec
    barred = _find_bar(state, rules, now_s)
    if barred is not None:
        return WorkerLimit(0, barred)
    most, written_off = find_largest_size(sizes), find_written_off(state, sizes, now_s)
    found = [] if written_off is None else [WorkerLimit(written_off.left, written_off.why)]
    found.append(_limit_by_sizes(spec.elastic_policy, most))
    if spec.target.throughput is not None and state.speeds:
        found += _limit_by_target(state, sizes, speed_model, spec.target.throughput)
    if spec.budget is not None:
        found += _limit_by_budget(
            state, sizes, rules, speed_model, price=price, left=spec.budget - state.spent
        )
    if state.workers:
        found += _limit_by_rest(state, sizes, rules, now_s)
    if speed_model.reach < most:
        found.append(_limit_by_measurements(state, sizes, speed_model))
    return min(found, key=lambda limit: limit.workers)


def _find_bar(state: JobState, rules: SchedulingRules, now_s: float) -> Why | None:
    """Return why a job may have no workers at all; None: it may."""
    spec = state.spec
    if state.ends is not None:
        return Ends(cause=state.ends)
    if spec.run_policy.suspend:
        return Suspended()
    if state.retry_at_s > now_s and not state.workers:
        return RetryLater(at_s=state.retry_at_s)
    if spec.budget is not None and state.spent >= spec.budget:
        return BudgetSpent(spent=state.spent, budget=spec.budget)
    if state.setbacks and not state.workers:
        until_s = compute_restart_s(state, rules, now_s)
        if now_s < until_s:
            return StoppedOften(until_s=until_s)
    return None


def find_written_off(state: JobState, sizes: Sizes, now_s: float) -> WrittenOff | None:
    """Return the workers of a job that were waited for until a timeout; None: all others may still come."""
    policy, size = state.spec.elastic_policy, state.workers
    starting_s, faulty_s = state.starting_since_s, state.faulty_since_s
    if starting_s is not None and now_s >= starting_s + policy.scaling_timeout_in_seconds:
        starting = sum(holding.starting for holding in state.holds)
        if new := starting - state.successors:
            # Workers below the minimum do not begin to train: those that have arrived only occupy devices.
            # Successors of workers that had arrived and died are not late yet.
            return WrittenOff(round_down_to_size(sizes, size - new), DidNotArrive(workers=new))
        if starting:
            left = max(find_smallest_size(sizes), round_down_to_size(sizes, size - starting))
            return WrittenOff(min(size, left), DidNotArrive(workers=starting))
    if faulty_s is not None and now_s >= compute_repair_deadline_s(state):
        failed = sum(holding.failed for holding in state.holds)
        # Training is not stopped for this: other workers take the places of the dead, or the attempt ends.
        left = max(find_smallest_size(sizes), round_down_to_size(sizes, size - failed))
        return WrittenOff(min(size, left), DidNotReturn(workers=failed)) if failed else None
    return None


def compute_repair_deadline_s(state: JobState) -> float:
    """Return until when failed workers of a job may come back, in seconds since 1970; 0: none has failed."""
    if state.faulty_since_s is None:
        return 0.0
    return state.faulty_since_s + state.spec.elastic_policy.faulty_scale_down_timeout_in_seconds


def _count_doublings(state: JobState, now_s: float) -> int:
    """Return how often the cooldown doubles: once for each setback but the first."""
    is_quiet = state.resized_s is None or now_s >= state.resized_s + QUIET_S
    return 0 if is_quiet else min(max(0, state.setbacks - 1), MAX_DOUBLINGS)


def compute_growth_rest_s(state: JobState, rules: SchedulingRules, now_s: float) -> float:
    """Return how long a job does not grow after a change, in proportion to what a resize costs it."""
    cost_s = min(REST_COSTS * state.resize_s, rules.horizon_s)
    return max(rules.cooldown_s, cost_s) * 2.0 ** _count_doublings(state, now_s)


def compute_restart_s(state: JobState, rules: SchedulingRules, now_s: float) -> float:
    """Return when a job that was stopped may start again, in seconds since 1970.

    At least the time that it rests lies between two starts. So a job that ran for longer than that may start
    again at once, and so may every job the first time. The rest also holds if the job was promised another
    place: two jobs that can change places only by being stopped would otherwise do so again and again.
    """
    rest_s = rules.cooldown_s * 2.0 ** _count_doublings(state, now_s)
    return (state.started_s or 0.0) + rest_s - rules.cooldown_s


def compute_waiting_since_s(state: JobState) -> float:
    """Return since when a job has waited: since it was submitted or stopped, or may be retried."""
    return max(state.submitted_s, state.resized_s or 0.0, state.retry_at_s)


def is_cooling_down(state: JobState, rules: SchedulingRules, now_s: float) -> bool:
    """Return whether a job was resized a moment ago."""
    return state.resized_s is not None and now_s < state.resized_s + rules.cooldown_s


def find_size_for_speed(state: JobState, sizes: Sizes, speed_model: SpeedModel, speed: float) -> float:
    """Return the workers for a speed in samples per second: those it has or was promised, else the fewest.

    Infinite if no legal size reaches the speed.
    """
    return _keep_within_tolerance(
        state, speed, lambda wanted: _find_fewest_for_speed(sizes, speed_model, wanted)
    )


def _keep_within_tolerance(state: JobState, asked: float, size_for: Callable[[float], float]) -> float:
    """Return the size for the asked value; the promised or present one if that is right within `TOLERANCE`.

    Other jobs may already have given up what was promised.
    """
    fewest, most = size_for(asked * (1 - TOLERANCE)), size_for(asked * (1 + TOLERANCE))
    for size in (max(state.promised, state.workers), state.workers) if state.workers else ():
        if fewest <= size <= most:
            return size
    return size_for(asked)


def _find_fewest_for_speed(sizes: Sizes, speed_model: SpeedModel, speed: float) -> float:
    needed = speed_model.compute_needed_workers(speed) - 1e-9
    if needed > find_largest_size(sizes):
        return math.inf
    enough = max(find_smallest_size(sizes), math.ceil(needed))
    workers = enough if round_down_to_size(sizes, enough) == enough else find_next_size(sizes, enough)
    while workers is not None and speed_model.compute_speed(workers) < speed * (1 - 1e-9):
        # A legal size beyond the needed one may be slower, on one node more.
        workers = find_next_size(sizes, workers)
    return math.inf if workers is None else workers


def _limit_by_target(
    state: JobState, sizes: Sizes, speed_model: SpeedModel, throughput: float
) -> list[WorkerLimit]:
    workers = find_size_for_speed(state, sizes, speed_model, throughput)
    if math.isinf(workers):
        return []
    return [WorkerLimit(int(workers), TargetMet(workers=int(workers), throughput=throughput))]


def _limit_by_budget(
    state: JobState,
    sizes: Sizes,
    rules: SchedulingRules,
    speed_model: SpeedModel,
    *,
    price: float,
    left: float,
) -> list[WorkerLimit]:
    """Limit a job so that its budget lasts to its end, or, if the end is not known, for the horizon."""
    devices = state.spec.worker_devices
    worker_s, most = devices * price / 3600, find_largest_size(sizes)
    if worker_s <= 0:
        return []
    remaining = state.remaining if state.speeds else None

    def compute_cost(workers: int) -> float:
        if remaining is None:
            return worker_s * workers * rules.horizon_s
        return worker_s * remaining * speed_model.compute_worker_s(workers)

    def find_affordable_size(budget: float) -> int:
        # More workers never cost less. The minimum runs until the budget is spent.
        workers = bisect_right(range(1, most + 1), budget, key=compute_cost)
        return max(find_smallest_size(sizes), round_down_to_size(sizes, workers))

    workers = int(_keep_within_tolerance(state, left, find_affordable_size))
    return [WorkerLimit(workers, BudgetAllows(workers=workers, left=left))] if workers < most else []


def _limit_by_sizes(policy: ElasticPolicy, largest: int) -> WorkerLimit:
    _, most = policy.limits
    is_chosen = not policy.replica_discrete_values and policy.replica_increment_step is None
    if is_chosen and largest < most:
        return WorkerLimit(largest, AtLargestUsefulSize(workers=largest, most=most))
    return WorkerLimit(largest, AtMaximum(workers=largest))


def _limit_by_measurements(state: JobState, sizes: Sizes, speed_model: SpeedModel) -> WorkerLimit:
    """Limit growth to sizes that the measured speeds can predict."""
    present = max(state.workers, find_smallest_size(sizes))
    if state.workers:
        # It was promised only what it had, or what could be predicted then.
        present = max(present, round_down_to_size(sizes, state.promised))
    workers = max(present, round_down_to_size(sizes, int(speed_model.reach)))
    largest = speed_model.largest
    if speed_model.reach == largest:
        return WorkerLimit(workers, MeasuredSlower(workers=largest))
    return WorkerLimit(workers, NotMeasured(workers=workers, measured=largest))


def _limit_by_rest(state: JobState, sizes: Sizes, rules: SchedulingRules, now_s: float) -> list[WorkerLimit]:
    """Allow no growth right after a change, or while a change is still going on."""
    found = []
    present = max(state.workers, find_smallest_size(sizes))
    draining = sum(place.workers - place.leaving for place in state.draining)
    if draining:
        found.append(WorkerLimit(present, OwnDrain(workers=draining)))
    if compute_repair_deadline_s(state) > now_s:
        found.append(WorkerLimit(present, AwaitsRepair(until_s=compute_repair_deadline_s(state))))
    until_s = (state.resized_s or 0.0) + compute_growth_rest_s(state, rules, now_s)
    if state.resized_s is not None and now_s < until_s:
        # It still gets what it was promised before the change.
        promised = round_down_to_size(sizes, max(present, state.promised))
        found.append(WorkerLimit(promised, CoolingDown(until_s=until_s)))
    return found
