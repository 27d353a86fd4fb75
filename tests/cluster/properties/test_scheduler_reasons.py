"""Every reason of a plan is true: checked against the snapshot, without the scheduler's arithmetic."""

import re
from datetime import UTC, datetime, timedelta
from typing import get_args

from hypothesis import given, settings

from elastane.cluster.nouns import plans
from elastane.cluster.nouns.config import Once, Reservation
from elastane.cluster.scheduler.calendar import list_reservation_times
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan

from .scheduler_model import (
    Cluster,
    Nodes,
    by_job,
    capacity,
    dice,
    is_unsuitable,
    legal,
    legal_sizes,
    on_pool,
    replace,
)
from .scheduler_strategies import empty_cluster
from .test_scheduler_rest import fits_beside
from .test_scheduler_safety import happen, histories


def named(kind):
    """Return ``gives_way`` for ``GivesWay``."""
    return re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


class Truth:
    """The claim of a reason, checked against its snapshot."""

    def __init__(self, before, made):
        self.before, self.decisions = before, by_job(made)
        self.states = {state.name: state for state in before.jobs}
        self.teams = {state.name: state.spec.team for state in before.jobs}
        self.pools = {pool.name: pool for pool in before.pools}

    def check(self, decision, why):
        state = self.states[decision.job]
        getattr(self, named(type(why)))(decision, state, why)

    def priority(self, state):
        values = {one.name: one.value for one in self.before.priorities}
        return values.get(state.spec.priority_class, 0)

    def above(self, team):
        parents = {one.name: one.parent for one in self.before.cohorts}
        parents |= {one.name: one.cohort for one in self.before.teams}
        path = [team]
        while path[-1]:
            path.append(parents.get(path[-1], ""))
        return path

    def taken_by_calendar(self, pool):
        now_s = self.before.now_s
        return max(
            (
                one.devices
                for one in self.before.reservations
                if one.pool == pool and any(list_reservation_times(one, now_s, now_s + one.announced_ahead_s))
            ),
            default=0,
        )

    def nodes(self, pool):
        """Return the quotas of the pool with its devices and the failed ones that may return."""
        there = capacity(self.before, pool)
        failed = sum(
            one.failed * state.spec.worker_devices
            for state in self.before.jobs
            for one in state.holds
            if one.pool == pool
        )
        away = max(0, min(failed, on_pool(self.before, pool) - there))
        reserved = self.taken_by_calendar(pool)
        return [Nodes(self.before, pool, max(0, there + more - reserved)) for more in range(away + 1)]

    def granted(self, pool):
        return sum(
            (one.workers - one.leaving) * state.spec.worker_devices
            for state in self.before.jobs
            for one in state.holds
            if one.pool == pool
        )

    def new(self, decision):
        """Return the workers by pool that the job does not have now."""
        held = {one.pool: one.workers for one in self.states[decision.job].holds}
        return {p: n - held.get(p, 0) + decision.drain.get(p, 0) for p, n in decision.workers.items()}

    # -- more

    def minimum_fits(self, decision, state, why):
        assert state.workers < state.spec.elastic_policy.min_replicas
        assert legal(state, sum(decision.workers.values()))
        assert why.node in self.above(state.spec.team)

    def worth_more(self, decision, state, why):
        assert sum(decision.workers.values()) > state.workers
        assert why.speedup > 1
        assert why.node in self.above(state.spec.team)
        assert any(self.new(decision).values())

    # -- less

    def gives_way(self, decision, state, why):
        winner, theirs = self.states[why.job], self.decisions[why.job]
        assert winner is not state
        assert any(one.pool == why.pool and one.workers > one.leaving for one in state.holds)
        mine, other = self.priority(state), self.priority(winner)
        devices = winner.spec.worker_devices
        assert theirs.entitled * devices >= why.devices > 0
        match why.because:
            case "owner":
                assert winner.spec.team != state.spec.team
                assert self.owned_above(winner, state, why.pool) > 0
            case "minimum":
                assert decision.entitled >= state.spec.elastic_policy.min_replicas or other > mine
            case "priority":
                assert other > mine
            case "deadline":
                assert winner.spec.deadline is not None or winner.spec.target.by is not None
                assert other == mine
            case "fairness":
                assert winner.spec.team != state.spec.team
                assert other == mine
            case "goodput":
                assert other == mine

    def owned_above(self, winner, loser, pool):
        """Return the devices of the pool that the winner's team and its unshared cohorts own."""
        shared = self.above(loser.spec.team)
        return max(
            nodes.quota(node)
            for nodes in self.nodes(pool)
            for node in self.above(winner.spec.team)
            if node not in shared
        )

    def nodes_leave(self, decision, state, why):
        assert {one.pool: one.leaving for one in state.holds}[why.pool] == why.workers > 0
        assert decision.drain[why.pool] >= why.workers

    def pool_changed(self, decision, state, why):
        pool = self.pools[why.pool]
        assert {one.pool: one.workers for one in state.holds}[why.pool] == why.workers > 0
        pools = [self.pools[one.pool] for one in state.holds]
        assert is_unsuitable(state, pool) or len({(pool.device, pool.place) for pool in pools}) > 1
        assert why.pool not in decision.workers

    def capacity_gone(self, decision, state, why):
        assert self.granted(why.pool) - capacity(self.before, why.pool) == why.devices > 0

    def reserved(self, decision, state, why):
        one = next(one for one in self.before.reservations if one.name == why.reservation)
        assert (one.pool, one.devices) == (why.pool, why.devices)
        if any(isinstance(other, plans.NoRoom) for other in decision.why):
            # The reservation is in the way of more workers: none starts on devices that it
            # needs within the horizon.
            assert why.at_s <= self.before.now_s + one.announced_ahead_s + self.before.rules.horizon_s
            kinds = state.spec.resources_per_worker.kinds
            assert not kinds or self.pools[why.pool].device in kinds
            return
        assert decision.action not in {"keep", "wait"}
        assert why.at_s <= self.before.now_s + one.announced_ahead_s
        assert self.granted(why.pool) > capacity(self.before, why.pool) - self.taken_by_calendar(why.pool)

    def quota_reached(self, decision, state, why):
        limits = {nodes.quota(why.node) + nodes.borrow.get(why.node, 0) for nodes in self.nodes(why.pool)}
        assert why.limit in limits
        assert why.node in self.above(state.spec.team)

    def size_not_legal(self, decision, state, why):
        assert not legal(state, why.workers)
        assert state.workers >= why.workers

    # -- nothing

    def no_such_pool(self, decision, state, why):
        assert all(is_unsuitable(state, pool) for pool in self.before.pools)

    def never_fits(self, decision, state, why):
        devices = state.spec.worker_devices
        least = state.spec.elastic_policy.min_replicas
        if state.spec.elastic_policy.replica_discrete_values:
            least = state.spec.elastic_policy.replica_discrete_values[0]
        assert why.need == least * devices > why.most
        assert not fits_beside(self.before, state, ())

    def no_room(self, decision, state, why):
        assert why.room < why.need
        if not decision.entitled and decision.action == "wait":
            assert why.need == state.spec.elastic_policy.min_replicas * state.spec.worker_devices
        if why.held_for:
            holder = self.states[why.held_for]
            assert not holder.holds
            assert self.priority(holder) >= self.priority(state)
            since_s = max(holder.submitted_s, holder.resized_s or 0.0)
            assert self.before.now_s - since_s >= self.before.rules.patience_s
        if why.node:
            assert why.node in self.above(state.spec.team)

    def restricted(self, decision, state, why):
        assert why.restriction in self.before.restrictions

    def protected(self, decision, state, why):
        other = self.states[why.job]
        assert why.by == decision.job
        assert self.priority(other) < self.priority(state)
        assert not state.holds
        assert why.until_s == other.started_s + self.before.rules.min_run_time_s > self.before.now_s
        devices = other.spec.worker_devices
        assert 0 < why.devices <= sum(one.workers for one in other.holds) * devices
        # This plan may move it there, from a pool that no longer fits it.
        assert any(one.pool == why.pool for one in other.holds) or self.decisions[why.job].workers[why.pool]

    def owned_by_others(self, decision, state, why):
        mine = self.above(state.spec.team)
        lower = [
            other
            for other in self.before.jobs
            if self.priority(other) < self.priority(state)
            and any(one.pool == why.pool for one in other.holds)
            and any(
                nodes.quota(node) > 0
                for nodes in self.nodes(why.pool)
                for node in self.above(other.spec.team)
                if node not in mine
            )
        ]
        theirs = sum(self.decisions[other.name].entitled * other.spec.worker_devices for other in lower)
        assert 0 < why.devices <= theirs

    def drains(self, decision, state, why):
        assert decision.entitled > sum(decision.workers.values())

    def awaits_repair(self, decision, state, why):
        assert any(one.failed for one in state.holds)
        timeout_s = state.spec.elastic_policy.faulty_scale_down_timeout_in_seconds
        assert why.until_s == state.faulty_since_s + timeout_s > self.before.now_s

    def did_not_return(self, decision, state, why):
        assert sum(one.failed for one in state.holds) == why.workers > 0
        timeout_s = state.spec.elastic_policy.faulty_scale_down_timeout_in_seconds
        assert state.faulty_since_s + timeout_s <= self.before.now_s

    def own_drain(self, decision, state, why):
        assert sum(one.workers - one.leaving for one in state.draining) == why.workers > 0

    # -- not more

    def at_maximum(self, decision, state, why):
        # If all devices are on one node, sizes beyond it are out of reach.
        largest = {legal_sizes(state, one_node=one_node)[-1] for one_node in (False, True)}
        assert decision.entitled <= why.workers
        assert why.workers in largest

    def at_largest_useful_size(self, decision, state, why):
        self.at_maximum(decision, state, why)
        assert why.workers < why.most == state.spec.elastic_policy.max_replicas

    def not_measured(self, decision, state, why):
        assert why.measured == max((size for size, _ in state.speeds), default=0)
        assert decision.entitled <= why.workers < legal_sizes(state)[-1]

    def measured_slower(self, decision, state, why):
        largest, speed = max(state.speeds)
        assert why.workers == largest < legal_sizes(state)[-1]
        assert any(speed <= other for size, other in state.speeds if size < largest)

    def not_worth(self, decision, state, why):
        assert why.efficiency < self.before.rules.worth
        assert why.workers > decision.entitled

    def resize_too_dear(self, decision, state, why):
        assert (why.cost_s, why.horizon_s) == (state.resize_s, self.before.rules.horizon_s)
        assert state.workers > 0

    def cooling_down(self, decision, state, why):
        rests_s = why.until_s - state.resized_s
        assert why.until_s > self.before.now_s
        assert 0 < rests_s <= self.before.rules.cooldown_s * 32

    def stopped_often(self, decision, state, why):
        assert state.workers == 0
        assert state.setbacks > 1
        rests_s = why.until_s - (state.started_s or 0.0)
        assert why.until_s > self.before.now_s
        assert 0 < rests_s <= self.before.rules.cooldown_s * 31


def checked(before, made):
    truth = Truth(before, made)
    for decision in made.decisions:
        for why in (*decision.why, *([] if decision.ceiling is None else [decision.ceiling])):
            truth.check(decision, why)
        sentences = explain_decision(decision, truth.teams)
        assert all(sentence.endswith(".") for sentence in sentences)
        for name in re.findall(r"\bjob-\d+\b", " ".join(sentences)):
            assert truth.teams[name] == truth.teams[decision.job], "their team cannot see that job"


@given(histories)
@settings(max_examples=300)
def test_every_reason_is_true(history):
    seed, events = history
    rng = dice(seed)
    cluster = Cluster(empty_cluster(rng), rng, late_leavers=rng.random() < 0.5)
    if rng.random() < 0.3:
        pool = cluster.snapshot.pools[0]
        start = datetime.fromtimestamp(0, UTC) + timedelta(seconds=rng.randint(0, 4000))
        one = Reservation(
            name="inference",
            pool=pool.name,
            devices=rng.randint(1, pool.devices),
            when=Once(start=start, end=start + timedelta(seconds=2000)),
        )
        cluster.snapshot = replace(cluster.snapshot, reservations=(one,))
    for number, event in enumerate(events):
        happen(cluster, event, number, rng)
        made = plan(cluster.snapshot)
        checked(cluster.snapshot, made)
        cluster.obey(made)
        cluster.pass_time(rng.choice([1.0, 30.0, 400.0]))


def test_every_kind_of_reason_is_checked_or_has_its_own_test():
    elsewhere = {
        plans.DidNotArrive,
        plans.Suspended,
        plans.Ends,
        plans.RetryLater,
        plans.BudgetSpent,
        plans.AwaitsArrival,
        plans.TargetMet,
        plans.BudgetAllows,
        plans.CheaperElsewhere,
    }
    assert {kind for kind in get_args(plans.Why) if not hasattr(Truth, named(kind))} == elsewhere
