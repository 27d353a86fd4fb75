"""What promises are worth when a pool has fewer devices than were promised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.api.cluster import Snapshot
from elastane.api.pools import Pool
from elastane.api.quotas import Quota, Team
from elastane.scheduler.accounts import kept_promises
from elastane.scheduler.plan import plan

from .test_plan import state


@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(0, 5000))
def test_promises_shrink_in_proportion_and_all_that_is_there_stays_promised(nominal, there):
    kept, promised = kept_promises(nominal, there), sum(nominal)
    assert sum(kept) == min(promised, there)
    part = min(1.0, there / promised) if promised else 0.0
    assert all(abs(one - was * part) < 1 for was, one in zip(nominal, kept, strict=True))


def test_what_rounding_leaves_goes_to_those_who_lost_most_by_it_the_first_of_equals_first():
    # 8 of 12: 3 1/3, 2 2/3, 2.
    assert kept_promises([5, 4, 3], 8) == [3, 3, 2]
    assert kept_promises([2, 2, 2], 5) == [2, 2, 1]


@pytest.mark.parametrize("borrow", [False, True])
def test_of_many_small_teams_one_lost_device_stops_one_job(borrow):
    teams = tuple(
        Team(name=f"t{i}", quotas=(Quota(pool="a", nominal_quota=2, borrowing_limit=0),)) for i in range(50)
    )
    jobs = tuple(state(i, workers=2, low=2, high=2, team=f"t{i}", borrow=borrow) for i in range(50))
    pools = (Pool(name="a", device="h100", devices=99),)
    made = plan(Snapshot(now_s=0.0, pools=pools, teams=teams, jobs=jobs))
    assert [one.job for one in made.decisions if one.action != "keep"] == ["job-49"]
