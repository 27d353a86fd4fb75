"""The most workers a job may have, whatever is idle, and why."""

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from elastane.api.cluster import JobState
from elastane.api.jobs import ElasticPolicy
from elastane.api.plans import (
    AtMaximum,
    AwaitsRepair,
    BudgetAllows,
    BudgetSpent,
    CoolingDown,
    DidNotArrive,
    DidNotReturn,
    Ends,
    OwnDrain,
    RetryLater,
    StoppedOften,
    Suspended,
    TargetMet,
    Why,
)
from elastane.api.rules import QUIET_S, Rules
from elastane.scheduler.goodput import Curve
from elastane.scheduler.sizes import following, largest, maximum, smallest

DOUBLINGS = 5
"""Of the cooldown, for a job that is pushed to and fro."""

TOLERANCE = 0.1
"""What a job has is kept while it is right for a tenth less or more than the speed or budget that is asked
for, so that noise in measured speeds resizes nobody."""


class GivenUp(NamedTuple):
    """Workers that nobody waits for any longer.

    Args:
        left: the size that the job is left with.
        why: they are given up.
    """

    left: int
    why: Why


class Limit(NamedTuple):
    workers: int
    why: Why


def limit(state: JobState, rules: Rules, curve: Curve, price: float, now_s: float) -> Limit:
    """The tightest of the job's own limits; 0 workers bar it.

    Args:
        state: the job.
        rules: for the cooldown and the horizon.
        curve: how fast it is.
        price: the highest price of a device and hour it may have to pay.
        now_s: seconds since 1970.
    """
    spec, policy = state.spec, state.spec.elastic_policy
    if state.ends is not None:
        return Limit(0, Ends(cause=state.ends))
    if spec.run_policy.suspend:
        return Limit(0, Suspended())
    if state.retry_at_s > now_s and not state.workers:
        return Limit(0, RetryLater(at_s=state.retry_at_s))
    if spec.budget is not None and state.spent >= spec.budget:
        return Limit(0, BudgetSpent(spent=state.spent, budget=spec.budget))
    if state.setbacks and not state.workers:
        until_s = back_at_s(state, rules, now_s)
        if now_s < until_s:
            return Limit(0, StoppedOften(until_s=until_s))
    most, absent = maximum(policy), given_up(state, now_s)
    found = [] if absent is None else [Limit(absent.left, absent.why)]
    found.append(Limit(most, AtMaximum(workers=most)))
    if spec.target.throughput is not None and state.speeds:
        found += _target(state, curve, spec.target.throughput)
    if spec.budget is not None:
        found += _budget(state, rules, curve, price, spec.budget - state.spent)
    if state.workers:
        found += _rest(state, rules, now_s)
    return min(found, key=lambda one: one.workers)


def given_up(state: JobState, now_s: float) -> GivenUp | None:
    """What becomes of a job some of whose workers have been waited for in vain; None: they may yet come."""
    policy, size = state.spec.elastic_policy, state.workers
    starting_s, faulty_s = state.starting_since_s, state.faulty_since_s
    if starting_s is not None and now_s >= starting_s + policy.scaling_timeout_in_seconds:
        starting = sum(holding.starting for holding in state.holds)
        if new := starting - state.successors:
            # Fewer than its minimum do not begin to train: who has arrived holds devices for nothing. Where
            # some had arrived and died, their successors are not late yet.
            return GivenUp(largest(policy, size - new), DidNotArrive(workers=new))
        if starting:
            left = max(smallest(policy), largest(policy, size - starting))
            return GivenUp(min(size, left), DidNotArrive(workers=starting))
    if faulty_s is not None and now_s >= repaired_by_s(state):
        failed = sum(holding.failed for holding in state.holds)
        # What trains is not stopped for it: others take the places of the dead, or the attempt ends by
        # itself.
        left = max(smallest(policy), largest(policy, size - failed))
        return GivenUp(min(size, left), DidNotReturn(workers=failed)) if failed else None
    return None


def repaired_by_s(state: JobState) -> float:
    """Until when what has failed of the job may come back, in seconds since 1970; 0: nothing has."""
    if state.faulty_since_s is None:
        return 0.0
    return state.faulty_since_s + state.spec.elastic_policy.faulty_scale_down_timeout_in_seconds


def rest_s(state: JobState, rules: Rules, now_s: float) -> float:
    """How long the job is left alone after a change: longer each time it had to give something back."""
    quiet = state.resized_s is None or now_s >= state.resized_s + QUIET_S
    return rules.cooldown_s * 2.0 ** (0 if quiet else min(max(0, state.setbacks - 1), DOUBLINGS))


def back_at_s(state: JobState, rules: Rules, now_s: float) -> float:
    """When a job that was stopped may start again, in seconds since 1970.

    From one start to the next it is as long as it rests: whoever ran for longer than that may come back at
    once, and so may everybody the first time. Also if it was promised another place: two that are to change
    places, and can only by being stopped, would do so for ever.
    """
    return (state.started_s or 0.0) + rest_s(state, rules, now_s) - rules.cooldown_s


def waiting_since_s(state: JobState) -> float:
    """Since when a job without workers has waited: its submission, or when it lost them, or may try again."""
    return max(state.submitted_s, state.resized_s or 0.0, state.retry_at_s)


def cooling(state: JobState, rules: Rules, now_s: float) -> bool:
    """The job was resized a moment ago."""
    return state.resized_s is not None and now_s < state.resized_s + rest_s(state, rules, now_s)


def paced(state: JobState, curve: Curve, speed: float) -> float:
    """Workers for that speed, in samples per second: those it has if they will do, else as few as reach it.

    Infinite if no legal size reaches it.
    """
    return _settled(state.workers, speed, lambda wanted: _reaching(state.spec.elastic_policy, curve, wanted))


def _settled(now: int, asked: float, size_for: Callable[[float], float]) -> float:
    """The size for what is asked, unless the size now is right for something within `TOLERANCE` of that."""
    within = size_for(asked * (1 - TOLERANCE)) <= now <= size_for(asked * (1 + TOLERANCE))
    return now if now and within else size_for(asked)


def _reaching(policy: ElasticPolicy, curve: Curve, speed: float) -> float:
    needed = curve.needed(speed) - 1e-9
    if needed > maximum(policy):
        return math.inf
    enough = max(smallest(policy), math.ceil(needed))
    workers = enough if largest(policy, enough) == enough else following(policy, enough)
    return math.inf if workers is None else workers


def _target(state: JobState, curve: Curve, throughput: float) -> list[Limit]:
    workers = paced(state, curve, throughput)
    if math.isinf(workers):
        return []
    return [Limit(int(workers), TargetMet(workers=int(workers), throughput=throughput))]


def _budget(state: JobState, rules: Rules, curve: Curve, price: float, left: float) -> list[Limit]:
    """What is left must last to the end of the job, or, where nobody knows that, for the horizon."""
    policy, devices = state.spec.elastic_policy, state.spec.resources_per_worker.devices
    worker_s, most = devices * price / 3600, maximum(policy)
    if worker_s <= 0:
        return []
    remaining = state.remaining if state.speeds else None

    def cost(workers: int) -> float:
        if remaining is None:
            return worker_s * workers * rules.horizon_s
        return worker_s * remaining * curve.worker_s(workers)

    def affordable(budget: float) -> int:
        # More workers never cost less. Its minimum runs until the budget is spent.
        workers = bisect_right(range(1, most + 1), budget, key=cost)
        return max(smallest(policy), largest(policy, workers))

    workers = int(_settled(state.workers, left, affordable))
    return [Limit(workers, BudgetAllows(workers=workers, left=left))] if workers < most else []


def _rest(state: JobState, rules: Rules, now_s: float) -> list[Limit]:
    """No growth right after a change, or while one is still going on."""
    found = []
    policy = state.spec.elastic_policy
    present = max(state.workers, smallest(policy))
    draining = sum(one.workers - one.leaving for one in state.draining)
    if draining:
        found.append(Limit(present, OwnDrain(workers=draining)))
    if repaired_by_s(state) > now_s:
        found.append(Limit(present, AwaitsRepair(until_s=repaired_by_s(state))))
    if cooling(state, rules, now_s) and state.resized_s is not None:
        until_s = state.resized_s + rest_s(state, rules, now_s)
        # What it was promised before it changed still comes.
        promised = largest(policy, max(present, state.promised))
        found.append(Limit(promised, CoolingDown(until_s=until_s)))
    return found
