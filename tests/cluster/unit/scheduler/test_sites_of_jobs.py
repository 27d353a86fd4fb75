"""A job with data at several sites begins with a worker at each, and keeps one there as long as it can."""

import random

import pytest
from msgspec.structs import replace

from elastane.cluster.controller.admission import check_residency
from elastane.cluster.nouns import plans
from elastane.cluster.nouns.cluster import Draining, Holding, Snapshot
from elastane.cluster.nouns.config import DeclaredEngine, EgressPrices, SchedulingRules, Team
from elastane.cluster.nouns.job_checks import check_job_spec
from elastane.cluster.nouns.jobs import DataPlacement
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan
from elastane.common.errors import BadInput

from .test_plan import NOW_S, TEAMS, decided, state

BERLIN = Pool(name="b", device="gpu", devices=4, engine="east", site="berlin", price=1.0)
BOSTON = Pool(name="u", device="gpu", devices=4, engine="west", site="boston", price=3.0)
ELSEWHERE = Pool(name="k", device="gpu", devices=64, engine="far", site="kyoto")
POOLS = (BERLIN, BOSTON, ELSEWHERE)
ENGINES = tuple(
    DeclaredEngine(name=name, kind="slurm", options={"home": "own"}) for name in ("east", "west", "far")
)
BOTH = DataPlacement(sites=("berlin", "boston"))


def decide(*jobs, pools=POOLS, engines=ENGINES):
    return decided(*jobs, pools=pools, engines=engines)


def hold(**workers):
    return {
        "holds": tuple(Holding(pool=pool, workers=count) for pool, count in workers.items()),
        "started_s": 0.0,
    }


@pytest.mark.parametrize(
    ("low", "high", "workers"),
    [(2, 2, {"b": 1, "u": 1}), (5, 5, {"b": 4, "u": 1}), (8, 8, {"b": 4, "u": 4}), (2, 8, {"b": 4, "u": 4})],
)
def test_each_site_gets_a_worker_and_the_cheaper_one_the_rest(low, high, workers):
    assert decide(state(low=low, high=high, data=BOTH)).workers == workers


def test_without_sites_a_job_is_at_one():
    assert decide(state(low=4, high=4)).workers == {"k": 4}


def test_a_job_waits_for_the_site_that_has_no_room():
    waits = decide(state(low=2, high=2, data=BOTH), pools=(BERLIN, replace(BOSTON, devices=0), ELSEWHERE))
    assert isinstance(waits.why[0], plans.NeverFits)
    other = state(2, low=4, high=4, fields=hold(u=4), data=DataPlacement(sites=("boston",)))
    waits, _ = decide(state(low=2, high=2, data=BOTH), other)
    assert waits.workers == {}
    assert waits.why[0] == plans.NoRoom(pool="u", need=1, room=0, node=None)


def test_a_site_without_a_pool_is_named():
    waits = decide(state(low=2, data=BOTH), pools=(BERLIN, replace(BOSTON, engine=""), ELSEWHERE))
    assert waits.why == (plans.NoSuchPool(sites=("boston",)),)
    said = " ".join(explain_decision(waits, TEAMS))
    assert "At site boston, no pool of an engine has what one of its workers asks for." in said


def test_sites_whose_machines_share_a_home_do_not_go_with_others():
    shared = (replace(ENGINES[0], options={}), *ENGINES[1:])
    waits = decide(state(low=2, data=BOTH), engines=shared)
    assert waits.why == (plans.NoSuchPool(sites=("berlin", "boston")),)
    assert "do not all have pools that its workers can share" in " ".join(explain_decision(waits, TEAMS))
    other = (BERLIN, replace(BOSTON, device="tpu"), ELSEWHERE)
    assert decide(state(low=2, data=BOTH), pools=other).why == (plans.NoSuchPool(sites=("berlin", "boston")),)


def test_a_site_keeps_its_worker_when_the_job_shrinks():
    job = state(low=2, high=8, fields=hold(b=4, u=2), data=BOTH)
    dear = state(2, low=4, high=4, data=DataPlacement(sites=("berlin",)), fields=hold(b=0))
    # Only four devices are left in all.
    pools = (replace(BERLIN, devices=2), replace(BOSTON, devices=1), ELSEWHERE)
    decision, _ = decide(job, replace(dear, holds=(), started_s=None), pools=pools)
    assert decision.workers == {"b": 2, "u": 1}


def test_a_running_job_goes_on_without_a_lost_site_and_returns_to_it():
    fixed = state(low=2, high=2, fields=hold(b=1), data=BOTH)
    lost = (BERLIN, replace(BOSTON, devices=0), ELSEWHERE)
    assert decide(fixed, pools=lost).workers == {"b": 2}
    moved = state(low=2, high=2, fields=hold(b=2), data=BOTH)
    assert decide(moved, pools=lost).workers == {"b": 2}
    back = decide(moved)
    assert back.workers in ({"b": 1, "u": 1}, {"b": 1})
    assert back.drain == {"b": 1}


@pytest.mark.parametrize(("berlin", "boston", "given_up"), [(1.0, 3.0, "u"), (20.0, 3.0, "b")])
def test_a_site_that_returns_takes_the_place_of_the_dearest_worker(berlin, boston, given_up):
    three = DataPlacement(sites=("berlin", "boston", "kyoto"))
    job = state(low=3, high=4, fields=hold(b=2, u=2), data=three)
    pools = (replace(BERLIN, price=berlin), replace(BOSTON, price=boston), replace(ELSEWHERE, devices=1))
    assert decide(job, pools=pools).drain == {given_up: 1}


@pytest.mark.parametrize(
    ("data", "low", "more", "error"),
    [
        (DataPlacement(sites=("Berlin",)), 1, {}, "'Berlin' cannot be the name of a site"),
        (DataPlacement(sites=("berlin", "berlin")), 2, {}, "are not different ones"),
        (replace(BOTH, regions=("berlin",)), 2, {}, "boston is not among data.regions, berlin"),
        (BOTH, 1, {}, "1 is less than the 2 sites of the job"),
        (BOTH, 2, {"contract": "torchrun"}, "all workers of the job must be on one machine"),
    ],
)
def test_impossible_sites_are_refused_in_words(data, low, more, error):
    spec = state(low=low, data=data, **more).spec
    with pytest.raises(BadInput, match=error):
        check_job_spec(spec)
    check_job_spec(state(low=2, data=replace(BOTH, regions=("boston", "berlin", "kyoto"))).spec)


def test_the_jobs_of_a_team_do_not_leave_its_sites():
    team = Team(name="t", sites=("berlin", "boston"))
    near = Snapshot(now_s=NOW_S, pools=POOLS, engines=ENGINES, teams=(team,), jobs=(state(low=4, high=4),))
    assert plan(near).decisions[0].workers == {"b": 4}
    far = replace(near, pools=(ELSEWHERE,))
    (waits,) = plan(far).decisions
    assert waits.why == (plans.NoSuchPool(allowed=("berlin", "boston")),)
    said = " ".join(explain_decision(waits, TEAMS))
    assert "The data of its team must not leave berlin, boston, and no pool there has" in said


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (DataPlacement(sites=("berlin", "kyoto")), "data.sites"),
        (DataPlacement(regions=("berlin", "kyoto")), "data.regions"),
    ],
)
def test_a_job_that_names_a_site_outside_its_team_is_refused_in_words(data, field):
    teams = (Team(name="other"), Team(name="t", sites=("berlin", "boston")))
    with pytest.raises(BadInput, match="kyoto is not among the sites of team t: berlin, boston") as refusal:
        check_residency(state(low=2, data=data).spec, teams)
    assert field in refusal.value.what
    check_residency(state(low=2, data=BOTH).spec, teams)
    check_residency(state(low=2, data=data).spec, teams[:1])


def draw_cluster(rng: random.Random):
    pools = tuple(
        Pool(
            name=f"{site}-{number}",
            device="gpu",
            devices=rng.randint(0, 6),
            engine=engine,
            site=site,
            price=rng.choice([0.0, 1.0, 2.0]),
        )
        for engine, site in (("east", "berlin"), ("west", "boston"), ("far", "kyoto"))
        for number in range(rng.randint(1, 2))
    )
    jobs = []
    for number in range(1, rng.randint(2, 5)):
        sites = tuple(rng.sample(["berlin", "boston", "kyoto"], rng.randint(0, 3)))
        low = rng.randint(max(1, len(sites)), 5)
        data = DataPlacement(sites=sites)
        jobs.append(state(number, low=low, high=low + rng.randint(0, 4), data=data))
    return pools, tuple(jobs)


def list_places(pools, workers):
    return {pool.site for pool in pools if workers.get(pool.name)}


def test_in_random_clusters_jobs_have_workers_at_all_their_sites_and_come_to_rest():
    started = 0
    for seed in range(150):
        pools, jobs = draw_cluster(random.Random(seed))
        snapshot = Snapshot(now_s=NOW_S, pools=pools, engines=ENGINES, jobs=jobs)
        for number in range(4):
            decisions = plan(snapshot).decisions
            running = []
            for job, decision in zip(snapshot.jobs, decisions, strict=True):
                sites = set(job.spec.data.sites)
                if sites and decision.workers:
                    started += not job.holds
                    assert list_places(pools, decision.workers) == sites, seed
                holds = tuple(Holding(pool=pool, workers=count) for pool, count in decision.workers.items())
                running.append(replace(job, holds=holds, started_s=snapshot.now_s if holds else None))
            # A job that has started may leave room for another one in its other pools, once or twice.
            assert number < 3 or not any(decision.drain for decision in decisions), seed
            snapshot = replace(snapshot, jobs=tuple(running), now_s=snapshot.now_s + 3600)
    assert started > 80


def follow(b=2, u=1, *, berlin=None, boston=None, low=2, rules=None, egress=(), now_s=NOW_S, **fields):
    """Return the decision about a job with workers in Berlin, where the price is 6, and in Boston, at 3."""
    berlin = replace(BERLIN, **({"price": 6.0} | (berlin or {})))
    boston = replace(BOSTON, **({"price": 3.0} | (boston or {})))
    spec = {"spot": True, "data": BOTH}
    job = state(low=low, high=b + u, fields=hold(b=b, u=u) | fields, **spec)
    snapshot = Snapshot(
        now_s=now_s,
        pools=(berlin, boston),
        engines=ENGINES,
        egress=egress,
        jobs=(job,),
        rules=rules or SchedulingRules(),
    )
    (decision,) = plan(snapshot).decisions
    return decision


def test_a_worker_moves_to_the_cheaper_site():
    decision = follow()
    assert (decision.action, decision.workers, decision.drain) == ("move", {"b": 1, "u": 2}, {"b": 1})
    assert decision.why == (
        plans.CheaperElsewhere(
            pool="b", price=6.0, target="u", target_price=3.0, saved=0.5, cost=0.15 + 15 / 3600, horizon_s=600
        ),
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"b": 1, "u": 2},
        {"boston": {"devices": 1}},
        {"boston": {"price": 5.5}},
        {"rules": SchedulingRules(horizon_s=100.0)},
        {"resized_s": NOW_S - 10},
        {"started_s": NOW_S - 10},
        {"starting_since_s": NOW_S - 10},
        {"draining": (Draining(pool="u", workers=1, deadline_s=NOW_S + 9),)},
        {"speeds": ((3, 10.0),), "remaining": 1000.0},
        {"parameters": 10**9, "egress": (EgressPrices(name="berlin", prices={"*": 0.05}),)},
    ],
    ids=", ".join,
)
def test_no_worker_moves_if_that_is_not_worth_it_or_not_possible_now(changed):
    assert follow(**changed).action == "keep"


def test_bytes_from_other_sites_do_not_keep_a_worker_where_they_cost_nothing():
    prices = (
        EgressPrices(name="berlin", prices={"kyoto": 9.0}),
        EgressPrices(name="boston", prices={"*": 9}),
    )
    assert follow(parameters=10**9, egress=prices).action == "move"


def test_a_minimum_does_not_move_to_devices_that_can_be_taken_away():
    assert follow(b=3, low=3, boston={"spot": True}).action == "keep"
    assert follow(b=3, low=2, boston={"spot": True}).workers == {"b": 2, "u": 2}
    assert follow(b=3, low=4).workers == {"b": 2, "u": 2}
