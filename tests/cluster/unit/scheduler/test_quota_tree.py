"""The value of promises when a pool has fewer devices than were promised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.nouns.cluster import Snapshot
from elastane.cluster.nouns.config import Cohort, Quota, Team
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.plan import plan
from elastane.cluster.scheduler.quota_tree import scale_promises

from .test_plan import state

promises = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 1000)), max_size=20)


@given(promises, st.integers(0, 5000))
def test_promises_shrink_in_proportion_and_cover_all_devices(nominal, there):
    kept, promised = scale_promises(nominal, there), sum(nominal)
    assert sum(kept) == min(promised, there)
    part = min(1.0, there / promised) if promised else 0.0
    sizes = set(nominal) - {0}
    for size in sizes:
        alike = [one for was, one in zip(nominal, kept, strict=True) if was == size]
        # Half a device of its own rounding, and its part of what the others' rounding adds up to.
        bound = 0.5 + 0.5 * len(sizes) * size * len(alike) / promised
        assert abs(sum(alike) - size * len(alike) * part) <= bound + 1e-9
        assert alike == sorted(alike, reverse=True)
        assert alike[0] - alike[-1] <= 1


@given(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 60)), max_size=12))
def test_no_promise_shrinks_when_a_device_is_added(nominal):
    before = [0] * len(nominal)
    for there in range(sum(nominal) + 2):
        kept = scale_promises(nominal, there)
        assert all(was <= one <= most for was, one, most in zip(before, kept, nominal, strict=True)), there
        before = kept
    assert before == nominal


@pytest.mark.parametrize(
    ("nominal", "there", "kept"),
    [
        # By the largest remainders the first would have one of 3 devices, and none of 4.
        ([1, 3, 3], 3, [0, 2, 1]),
        ([1, 3, 3], 4, [1, 2, 1]),
        ([5, 4, 3], 8, [3, 3, 2]),
        ([2, 2, 2], 5, [2, 2, 1]),
        # Of half, half of the small ones have theirs, not all or none of them.
        ([6, 1, 1, 1, 1, 1, 1], 6, [3, 1, 1, 1, 0, 0, 0]),
        ([10**9, 10**9, 5], 8, [4, 4, 0]),
    ],
)
def test_devices_are_handed_out_in_turns(nominal, there, kept):
    assert scale_promises(nominal, there) == kept


def test_a_repaired_device_stops_no_job():
    teams = tuple(
        Team(name=f"t{i}", quotas=(Quota(pool="a", nominal_quota=nominal, borrowing_limit=0),))
        for i, nominal in enumerate((1, 3, 3))
    )
    for there in range(1, 7):
        pools = (Pool(name="a", device="h100", devices=there),)
        kept = scale_promises([1, 3, 3], there)
        jobs = tuple(state(i, workers=n, low=n, high=n, team=f"t{i}") for i, n in enumerate(kept) if n)
        repaired = (Pool(name="a", device="h100", devices=there + 1),)
        for now in (pools, repaired):
            made = plan(Snapshot(now_s=0.0, pools=now, teams=teams, jobs=jobs))
            assert [one.action for one in made.decisions] == ["keep"] * len(jobs)


@pytest.mark.parametrize("borrow", [False, True])
def test_one_lost_device_stops_one_job_of_many_small_teams(borrow):
    teams = tuple(
        Team(name=f"t{i}", quotas=(Quota(pool="a", nominal_quota=2, borrowing_limit=0),)) for i in range(50)
    )
    jobs = tuple(state(i, workers=2, low=2, high=2, team=f"t{i}", borrow=borrow) for i in range(50))
    pools = (Pool(name="a", device="h100", devices=99),)
    made = plan(Snapshot(now_s=0.0, pools=pools, teams=teams, jobs=jobs))
    assert [one.job for one in made.decisions if one.action != "keep"] == ["job-49"]


@given(st.data(), promises, st.integers(0, 5000))
def test_no_promise_shrinks_below_its_part_that_is_needed(data, nominal, there):
    least = [data.draw(st.integers(0, promise)) for promise in nominal]
    kept = scale_promises(nominal, there, least)
    assert sum(kept) == min(sum(nominal), there)
    if sum(least) <= there:
        assert all(low <= one <= high for low, one, high in zip(least, kept, nominal, strict=True))
    assert scale_promises(nominal, there, [0] * len(nominal)) == scale_promises(nominal, there)


@pytest.mark.parametrize("cohort", [False, True])
def test_promises_beyond_a_pool_stop_no_running_job_of_an_owner(cohort):
    """The job of t0 has a device that its team or cohort owns; t1 was promised more than the pool has."""
    owned = Quota(pool="a", nominal_quota=1)
    teams = (
        Team(name="t0", cohort="c" if cohort else "", quotas=() if cohort else (owned,)),
        Team(name="t1", quotas=(Quota(pool="a", nominal_quota=5),)),
    )
    cohorts = (Cohort(name="c", quotas=(owned,)),) if cohort else ()
    pools = (Pool(name="a", device="h100", devices=2),)
    jobs = (state(0, workers=2, low=1, high=2, team="t0"), state(1, low=1, high=2, team="t1"))
    made = plan(Snapshot(now_s=1e6, pools=pools, jobs=jobs, teams=teams, cohorts=cohorts))
    assert [decision.entitled for decision in made.decisions] == [1, 1]
