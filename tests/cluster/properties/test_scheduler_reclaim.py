"""The shortcuts of a plan, which refuse jobs that cannot fit and skip idle quotas, change no plan."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastane.cluster.nouns.cluster import Snapshot
from elastane.cluster.nouns.config import Cohort, Team
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler import growth, placement, reclaim
from elastane.cluster.scheduler.allocation import Allocation
from elastane.cluster.scheduler.allocator import allocate
from elastane.cluster.scheduler.plan import plan
from elastane.cluster.scheduler.quota_ledger import QuotaLedger

from .scheduler_model import Cluster, dice, job, quota, running
from .scheduler_strategies import PRIORITIES, empty_cluster, some_job
from .test_scheduler_safety import EVENTS, happen


def crowd(seed, check):
    """Play a history with more waiting jobs than fit; ``check`` gets each snapshot and its plan."""
    rng = dice(seed)
    cluster = Cluster(empty_cluster(rng), rng, late_leavers=rng.random() < 0.5)
    for number in range(12):
        cluster.submit(some_job(rng, number))
    for number in range(12, 24):
        before, made = cluster.snapshot, cluster.tick(rng.choice([1.0, 30.0, 400.0]))
        check(before, made)
        happen(cluster, rng.choice(EVENTS), number, rng)


@pytest.mark.parametrize(("owner", "shortcut"), [(reclaim, "may_fit"), (QuotaLedger, "has_idle_device")])
@given(seed=st.integers(0, 2**32))
@example(seed=23489)
@settings(max_examples=75)
def test_a_job_that_is_refused_without_trying_would_not_have_fitted(owner, shortcut, seed):
    """In the example, it would have fitted: its cohort had borrowed from the cluster what it took back."""

    def check(before, made):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, shortcut, lambda *_: True)
            assert plan(before) == made

    crowd(seed, check)


@given(st.integers(0, 2**32))
@settings(max_examples=50)
def test_after_a_full_reclaim_nothing_more_can_be_taken_back(seed):
    def check(before, _):
        cluster, allocation = allocate(before)
        for planned in cluster.jobs:
            for grant in list(planned.grants):
                allocation.take_back(grant)
        loans = (allocation.reclaimable.growth, *allocation.reclaimable.minimums.values())
        assert not any(any(pools) for one in loans for nodes in one for pools in nodes)

    crowd(seed, check)


def test_a_partly_borrowed_minimum_is_taken_back_as_a_whole():
    """The borrowed part of the lower priority is too small for the other job; both parts are enough."""
    teams = (Team(name="t", cohort="c", quotas=(quota("a", 4),)), Team(name="u", cohort="c"))
    snapshot = Snapshot(
        now_s=10_000.0,
        pools=(Pool(name="a", device="h100", devices=11),),
        teams=teams,
        cohorts=(Cohort(name="c", quotas=(quota("a", 6),)),),
        priorities=PRIORITIES,
        jobs=(running(job(1, "t", low=7, priority="low"), a=7), job(2, "u", low=8)),
    )
    assert [(one.action, one.entitled) for one in plan(snapshot).decisions] == [("preempt", 0), ("wait", 8)]


def test_growth_on_another_quota_is_lost_with_its_minimum():
    """The grants are set by hand, as if a team's own quota became free after its job had borrowed."""
    teams = (Team(name="t", cohort="c"), Team(name="u", cohort="c"))
    snapshot = Snapshot(
        now_s=10_000.0,
        pools=(Pool(name="a", device="h100", devices=0),),
        teams=teams,
        cohorts=(Cohort(name="c"),),
        priorities=PRIORITIES,
        jobs=(job(1, "t", priority="low"), job(2, "u"), job(3, "u", priority="low")),
    )
    cluster, allocation = allocate(snapshot)
    borrower, better, equal = cluster.jobs
    team, cohort, _ = borrower.path
    allocation.grant(borrower, cohort, ((0, 3),), growth=False)
    allocation.grant(borrower, team, ((0, 2),), growth=True)
    assert allocation.reclaimable.compute_most(better, 2, 0) == [0, 5, 5, 5]
    assert allocation.reclaimable.compute_most(equal, 2, 0) == [0, 0, 0, 0]


def plan_and_count_calls(snapshot, owner, name):
    """Return a plan, and how often it called a function."""
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        original = getattr(owner, name)

        def call(*args, **options):
            calls.append(args)
            return original(*args, **options)

        patch.setattr(owner, name, call)
        return plan(snapshot), len(calls)


def test_growth_is_not_tried_again_for_each_job_that_is_stopped():
    """The stopped jobs held less than one of them needs, and each gives it back before the next one."""
    snapshot = Snapshot(
        now_s=10_000.0,
        pools=(Pool(name="a", device="h100", devices=2000),),
        teams=(Team(name="t", quotas=(quota("a", 2000),)),),
        priorities=PRIORITIES,
        jobs=(
            *(running(job(i, low=18, high=20, priority="low"), a=20) for i in range(100)),
            *(job(100 + i, low=13, high=20, priority="high") for i in range(100)),
        ),
    )
    made, tried = plan_and_count_calls(snapshot, growth, "place_growth")
    assert [one.action for one in made.decisions].count("preempt") == 62
    assert tried <= 5 * len(snapshot.jobs)


@pytest.mark.parametrize("patient", [False, True])
def test_nothing_is_taken_back_for_a_job_over_its_teams_borrowing_limit(patient):
    """Ten teams have grown to their borrowing limit in one cohort; each has ten more jobs that wait."""
    teams = tuple(Team(name=f"t{i}", cohort="c", quotas=(quota("a", 0, borrow=200),)) for i in range(10))
    grown = (running(job(i, f"t{i % 10}", high=20, priority="high"), a=20) for i in range(100))
    more = (job(100 + i, f"t{i % 10}", low=191 + i // 10, high=1000) for i in range(100))
    late = 1e6 if patient else 1.0
    snapshot = Snapshot(
        now_s=late,
        pools=(Pool(name="a", device="h100", devices=2000),),
        teams=teams,
        cohorts=(Cohort(name="c", quotas=(quota("a", 2000),)),),
        priorities=PRIORITIES,
        jobs=(*grown, *more),
    )
    made, taken = plan_and_count_calls(snapshot, Allocation, "take_back")
    assert [one.action for one in made.decisions] == ["keep"] * 100 + ["wait"] * 100
    assert taken == 0


def test_the_parts_of_refused_jobs_are_handed_out_once():
    """Half of the jobs keep their places; the rest is a part of a minimum, which each other job had."""
    snapshot = Snapshot(
        now_s=10_000.0,
        pools=(Pool(name="a", device="h100", devices=2000),),
        teams=(
            Team(name="t", cohort="c"),
            Team(name="u", cohort="c"),
            Team(name="v", quotas=(quota("a", 995, lend=0),)),
        ),
        cohorts=(Cohort(name="c", quotas=(quota("a", 1005),)),),
        jobs=tuple(running(job(i, "tu"[i % 2], low=10), a=10) for i in range(200)),
    )
    made, tried = plan_and_count_calls(snapshot, placement, "fill_held_places")
    assert [one.action for one in made.decisions] == ["keep"] * 100 + ["preempt"] * 100
    assert tried <= 5 * len(snapshot.jobs)
