"""Weights by remaining work: short jobs first, with a bound for long ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.nouns.cluster import Holding, JobState, Snapshot
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.cluster.nouns.plans import GivesWay
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.cluster_index import EXPONENT, LEAST_WEIGHT, compute_weight
from elastane.cluster.scheduler.plan import plan

works = st.lists(st.floats(0, 1e9), min_size=1, max_size=30).map(sorted)


@given(works)
def test_a_job_with_less_work_weighs_at_least_as_much(found):
    weights = [compute_weight(found, work) for work in found]
    assert weights == sorted(weights, reverse=True)
    assert all(LEAST_WEIGHT <= weight <= EXPONENT for weight in weights)


@given(works)
def test_a_long_job_has_a_bounded_part_of_an_equal_share(found):
    weights = [compute_weight(found, work) for work in found]
    share = min(weights) / sum(weights) * len(weights)
    assert share >= LEAST_WEIGHT / (1 + LEAST_WEIGHT) - 1e-9


def test_jobs_with_equal_work_weigh_the_same():
    assert compute_weight([5.0] * 4, 5.0) == pytest.approx(1.0)


# -- in plans -----------------------------------------------------------------------------------------------

DEVICES = 16
SPEEDS = tuple((n, n / (0.9 + 0.1 * n)) for n in (1, 2, 4, 8, 16))


def make_job(number, workers=0, **fields):
    policy = ElasticPolicy(min_replicas=1, max_replicas=DEVICES, replica_increment_step=1)
    return JobState(
        number=number,
        spec=JobSpec(name=f"job-{number}", script="train.py", team="t", elastic_policy=policy),
        submitted_s=0.0,
        holds=(Holding(pool="a", workers=workers),) if workers else (),
        started_s=0.0 if workers else None,
        speeds=SPEEDS,
        **fields,
    )


def plan_sizes(*jobs):
    made = plan(Snapshot(now_s=1e6, pools=(Pool(name="a", device="h100", devices=DEVICES),), jobs=jobs))
    return [decision.entitled for decision in made.decisions]


def test_of_two_jobs_the_shorter_one_gets_the_larger_share():
    short, long = plan_sizes(make_job(1, remaining=1e3), make_job(2, remaining=1e6))
    assert (short + long, short > DEVICES / 2) == (DEVICES, True)
    assert long >= 2


def test_where_the_rest_is_not_known_a_job_that_did_less_counts_as_shorter():
    new, old = plan_sizes(make_job(1, trained=10.0), make_job(2, trained=1e6))
    assert new > old


def test_jobs_share_equally_if_nothing_is_known():
    assert plan_sizes(make_job(1), make_job(2)) == [DEVICES / 2] * 2


def test_jobs_with_nearly_the_same_work_do_not_change_places():
    first, second = plan_sizes(make_job(1, remaining=1e5), make_job(2, remaining=1.5e5))
    assert first > second
    shorter = make_job(1, first, remaining=1e5), make_job(2, second, remaining=0.9e5)
    first, second = plan_sizes(*shorter)
    assert first >= second
    for less, more in ((1e5, 0.9e5), (0.9e5, 1e5)):
        later = make_job(1, first, remaining=less), make_job(2, second, remaining=more)
        assert plan_sizes(*later) == [first, second]
    much_shorter = make_job(1, first, remaining=1e5), make_job(2, second, remaining=0.1e5)
    assert plan_sizes(*much_shorter)[1] > second


def test_a_job_that_rests_after_a_setback_still_gives_way():
    """Growth waits, but a waiting job gets its minimum at once."""
    resting = make_job(1, DEVICES, setbacks=4, resized_s=1e6 - 200)
    made = plan(
        Snapshot(
            now_s=1e6,
            pools=(Pool(name="a", device="h100", devices=DEVICES),),
            jobs=(resting, make_job(2)),
        )
    )
    [decision, start] = made.decisions
    assert (decision.action, start.entitled >= 1) == ("shrink", True)
    assert isinstance(decision.why[0], GivesWay)
