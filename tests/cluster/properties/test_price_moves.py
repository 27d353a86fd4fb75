"""Workers of jobs at several sites follow prices: they come to rest, keep each site, and never cost more."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastane.cluster.nouns.cluster import Snapshot
from elastane.cluster.nouns.config import DeclaredEngine, EgressPrices, SchedulingRules, Team
from elastane.cluster.nouns.jobs import DataPlacement
from elastane.cluster.nouns.plans import CheaperElsewhere
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler import changes
from elastane.cluster.scheduler.price_moves import PARAMETER_BYTES, START_S

from .scheduler_model import TICK_S, Cluster, by_job, dice, job, quota, replace
from .test_scheduler_rest import rested

seeds = st.integers(0, 2**32)
SITES = ("berlin", "boston", "kyoto")


def spread(rng, *, jobs=3, limits=True):
    """Build a cluster of two or three sites with jobs that have data at some of them and never end."""
    sites = SITES[: rng.randint(2, 3)]
    pools = [
        Pool(
            name=f"{site}-{terms}",
            device="h100",
            devices=rng.randint(1, 6),
            spot=terms == "spot",
            site=site,
            engine=site,
        )
        for site in sites
        for terms in ("owned", *(("spot",) if rng.random() < 0.4 else ()))
    ]
    quotas = tuple(quota(pool.name, rng.randint(0, 3)) for pool in pools if limits and rng.random() < 0.5)
    made = Cluster(
        Snapshot(
            now_s=0.0,
            pools=tuple(pools),
            engines=tuple(DeclaredEngine(name=site, kind="slurm") for site in sites),
            teams=(Team(name="t0", quotas=quotas), Team(name="t1")),
            rules=SchedulingRules(),
            egress=tuple(
                EgressPrices(name=site, prices={"*": rng.choice([0.0, 0.05, 1.0])}) for site in sites
            ),
        ),
        rng,
    )
    change_prices(made)
    for number in range(rng.randint(1, jobs)):
        own = tuple(sorted(rng.sample(sites, rng.randint(2, len(sites)))))
        low = len(own) + rng.randint(0, 2)
        made.submit(
            job(
                number,
                rng.choice(["t0", "t1"]),
                low=low,
                high=low + rng.randint(0, 4),
                devices=rng.choice([1, 1, 2]),
                spot=rng.random() < 0.6,
                data=DataPlacement(sites=own),
                state={
                    "resize_s": rng.choice([0.0, 1.0, 10.0]),
                    "parameters": rng.choice([0, 10**6, 10**9]),
                    "speeds": rng.choice([(), ((1, 10.0), (8, 60.0))]),
                },
            )
        )
    return made


def change_prices(cluster):
    pools = (replace(pool, price=cluster.rng.uniform(0.5, 8.0)) for pool in cluster.snapshot.pools)
    cluster.snapshot = replace(cluster.snapshot, pools=tuple(pools))


def list_moves(made):
    return {
        name: decision.why[0]
        for name, decision in by_job(made).items()
        if isinstance(decision.why[0], CheaperElsewhere)
    }


@given(seeds)
@example(392321496)
@settings(max_examples=60)
def test_with_constant_prices_every_cluster_comes_to_rest(seed):
    """The example did not: workers left their own quota, gave way to a borrower and stopped it at home."""
    rng = dice(seed)
    cluster = spread(rng)
    for _ in range(2):
        change_prices(cluster)
        rested(cluster)
        for _ in range(20):
            assert all(decision.action in ("keep", "wait") for decision in cluster.tick().decisions)


@given(seeds)
@settings(max_examples=60)
def test_moves_keep_a_worker_at_each_site_the_size_and_the_pause_between_two(seed):
    """Also while prices change all the time."""
    rng = dice(seed)
    cluster, moved = spread(rng), dict[str, float]()
    for _ in range(60):
        if rng.random() < 0.5:
            change_prices(cluster)
        before, now_s = cluster.snapshot, cluster.snapshot.now_s
        made = cluster.tick()
        site_of = {pool.name: pool.site for pool in before.pools}
        states = {state.name: state for state in before.jobs}
        for name in list_moves(made):
            state, decision = states[name], by_job(made)[name]
            assert sum(decision.workers.values()) == state.workers
            had = {site_of[holding.pool] for holding in state.holds}
            assert {site_of[pool] for pool in decision.workers} >= had
            assert sum(decision.drain.values()) == 1
            assert now_s - moved.get(name, -1e9) >= before.rules.cooldown_s
            moved[name] = now_s


def run_and_add_up(cluster, ticks):
    """Return the cost of devices, leaving ones included, and of what moves cost beside them.

    In this cluster a new worker trains from the next plan on at the latest, and an old one has left by then.
    """
    total = 0.0
    for _ in range(ticks):
        snapshot = cluster.snapshot
        prices = {pool.name: pool for pool in snapshot.pools}
        found = list_moves(cluster.tick(0.0))
        for state in cluster.snapshot.jobs:
            devices = state.spec.worker_devices
            held = sum(prices[place.pool].price * place.workers for place in state.places) * devices
            total += held * TICK_S / 3600
            if (why := found.get(state.name)) is not None:
                others = [entry.find_price(prices[why.target].site) for entry in snapshot.egress]
                total += state.parameters * PARAMETER_BYTES / 1e9 * min(others)
                # Nothing is trained by the new worker for this time, and by no worker during the resize.
                total += (why.target_price * devices * TICK_S + held * state.resize_s) / 3600
        cluster.pass_time(TICK_S)
    return total


@given(seeds)
@settings(max_examples=60)
def test_a_job_that_follows_prices_costs_no_more_than_one_that_does_not(seed):
    """From a change of the prices on, until they change again: no plan knows what comes after that."""
    assert TICK_S <= START_S

    def compute_cost(*, follows):
        rng = dice(seed)
        cluster = spread(rng, jobs=1, limits=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(changes, "may_follow_prices", lambda job, snapshot: False)
            for _ in range(30):
                cluster.tick()
            change_prices(cluster)
            if not follows:
                return run_and_add_up(cluster, 80)
        return run_and_add_up(cluster, 80)

    assert compute_cost(follows=True) <= compute_cost(follows=False) + 1e-6
