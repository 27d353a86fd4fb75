"""No plan gives devices that do not exist or are not allowed, in any cluster with any jobs and events."""

from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.cluster.scheduler.plan import plan

from .scheduler_model import (
    Cluster,
    Nodes,
    by_job,
    capacity,
    dice,
    legal,
    on_pool,
    replace,
    used,
)
from .scheduler_strategies import empty_cluster, some_job

EVENTS = (
    "submit",
    "submit",
    "submit",
    "tick",
    "tick",
    "tick",
    "cancel",
    "fail",
    "repair",
    "die",
    "leave",
    "resize",
    "priority",
    "relabel",
)


histories = st.tuples(st.integers(0, 2**32), st.lists(st.sampled_from(EVENTS), min_size=3, max_size=25))


def played(history, check):
    """Play a history; ``check`` gets the cluster before a plan, the plan, and the cluster after it."""
    seed, events = history
    rng = dice(seed)
    cluster = Cluster(empty_cluster(rng), rng, late_leavers=rng.random() < 0.5)
    for number, event in enumerate(events):
        happen(cluster, event, number, rng)
        before = cluster.snapshot
        made = plan(before)
        cluster.obey(made)
        check(before, made, cluster.snapshot)
        cluster.pass_time(rng.choice([1.0, 30.0, 400.0]))


def happen(cluster, event, number, rng):
    snapshot = cluster.snapshot
    names = [state.name for state in snapshot.jobs]
    which = rng.randrange(len(snapshot.pools))
    pool = snapshot.pools[which]
    pools = list(snapshot.pools)
    match event:
        case "submit":
            cluster.submit(some_job(rng, number))
        case "cancel" if names:
            gone = rng.choice(names)
            cluster.snapshot = replace(snapshot, jobs=tuple(s for s in snapshot.jobs if s.name != gone))
        case "fail" | "repair":
            more = rng.randint(1, 8) * (1 if event == "repair" else -1)
            pools[which] = replace(pool, devices=max(0, pool.devices + more))
            cluster.snapshot = replace(snapshot, pools=tuple(pools))
        case "die" if names:
            die(cluster, rng.choice(names), rng)
        case "leave":
            leave(cluster, which, rng)
        case "resize" if names:
            name = rng.choice(names)
            policy = cluster.of(name).spec.elastic_policy
            if not policy.replica_discrete_values:
                low = rng.randint(1, 6)
                most = low + (policy.replica_increment_step or 1) * rng.randint(0, 4)
                cluster.change(name, elastic_policy=replace(policy, min_replicas=low, max_replicas=most))
        case "relabel":
            engine = {"engine": "" if pool.engine else "hpc"}
            label = rng.choice([{"device": "h100"}, {"device": "a100"}, {"spot": not pool.spot}, engine])
            pools[which] = replace(pool, **label)
            cluster.snapshot = replace(snapshot, pools=tuple(pools))
        case "priority" if names:
            cluster.change(rng.choice(names), priority_class=rng.choice(["", "high", "low"]))


def die(cluster, name, rng):
    """Let workers of one job fail, with or without their devices."""
    snapshot, state = cluster.snapshot, cluster.of(name)
    holds, gone = [], {}
    for one in state.holds:
        dead = rng.randint(0, one.workers - one.failed)
        gone[one.pool] = rng.randint(0, dead * state.spec.worker_devices)
        holds.append(replace(one, failed=one.failed + dead))
    if not any(one.failed for one in holds):
        return
    since_s = snapshot.now_s if state.faulty_since_s is None else state.faulty_since_s
    broken = replace(state, holds=tuple(holds), faulty_since_s=since_s)
    cluster.snapshot = replace(
        snapshot,
        jobs=tuple(broken if one is state else one for one in snapshot.jobs),
        pools=tuple(
            replace(pool, devices=max(0, pool.devices - gone.get(pool.name, 0))) for pool in snapshot.pools
        ),
    )


def leave(cluster, which, rng):
    """Let some of a pool's nodes leave, with the workers on them."""
    snapshot = cluster.snapshot
    pool = snapshot.pools[which]
    left, jobs_after = rng.randint(0, pool.devices), []
    leaving = 0
    for state in snapshot.jobs:
        devices = state.spec.worker_devices
        holds = []
        for one in state.holds:
            if one.pool == pool.name:
                doomed = min(one.workers, (left - leaving) // devices)
                leaving += doomed * devices
                holds.append(replace(one, leaving=doomed))
            else:
                holds.append(one)
        jobs_after.append(replace(state, holds=tuple(holds)))
    pools = list(snapshot.pools)
    # Only as many as have workers that stay, so that no draining worker is among them.
    pools[which] = replace(pool, leaving=leaving)
    cluster.snapshot = replace(snapshot, pools=tuple(pools), jobs=tuple(jobs_after))


@given(histories)
@settings(max_examples=300)
def test_no_pool_and_no_quota_is_exceeded(history):
    def check(before, made, after):
        for pool in before.pools:
            there = capacity(before, pool.name)
            if on_pool(after, pool.name) > on_pool(before, pool.name):
                assert on_pool(after, pool.name) <= there
            nodes = Nodes(before, pool.name, there)
            now, then = (
                {team: pools.get(pool.name, 0) for team, pools in used(one).items()}
                for one in (before, after)
            )
            for node in nodes.over(then):
                # A node that is over its quota, because that was lowered, is at least given nothing more.
                assert nodes.usage(node, then) <= nodes.usage(node, now), node

    played(history, check)


def given_anew(before, made, name):
    """Return the workers by pool that a plan starts."""
    state = next(state for state in before.jobs if state.name == name)
    decision = by_job(made)[name]
    held = {one.pool: one.workers for one in state.holds}
    return {
        pool: workers - (held.get(pool, 0) - decision.drain.get(pool, 0))
        for pool, workers in decision.workers.items()
    }


@given(histories)
@settings(max_examples=300)
def test_every_job_has_a_legal_size_or_none_and_never_grows_and_shrinks_at_once(history):
    def check(before, made, _):
        decisions = by_job(made)
        assert list(decisions) == [state.name for state in sorted(before.jobs, key=lambda s: s.number)]
        for state in before.jobs:
            decision = decisions[state.name]
            size = sum(decision.workers.values())
            # A job with a policy that was just changed keeps its size until it can have a legal one.
            assert size == 0 or legal(state, size) or decision.action == "keep"
            held = {one.pool: one for one in state.holds}
            for pool, workers in decision.drain.items():
                assert 0 < workers <= held[pool].workers
                if workers > held[pool].leaving + held[pool].failed:
                    assert given_anew(before, made, state.name).get(pool, 0) <= 0
            for started in given_anew(before, made, state.name).values():
                assert started >= 0
            if state.draining and any(one.workers > one.leaving for one in state.draining):
                assert not any(given_anew(before, made, state.name).values())
            assert decision.why
            kinds = {(p.device, p.place) for p in before.pools if p.name in decision.workers}
            assert len(kinds) <= 1
            assert not held or kinds <= {(p.device, p.place) for p in before.pools if p.name in held}

    played(history, check)


@given(histories, st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_equal_snapshots_give_equal_plans_in_any_order_of_their_entries(history, rng):
    def check(before, made, _):
        shuffled = list(before.jobs)
        rng.shuffle(shuffled)
        assert plan(replace(before, jobs=tuple(shuffled))) == made == plan(before)

    played(history, check)
