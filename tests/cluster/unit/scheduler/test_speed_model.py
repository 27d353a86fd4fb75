"""The model has the measured speeds, and predicts others within reach."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.scheduler.speed_model import (
    CROSSING,
    REACH,
    SpeedModel,
    build_speed_model,
    pass_on_speeds,
)

NODE = 8
measurements = st.dictionaries(st.integers(1, 1000), st.floats(1e-3, 1e6), max_size=8).map(
    lambda by_size: tuple(by_size.items())
)


def make_speeds(a, b, sizes):
    return tuple((n, n / (a + b * n)) for n in sizes)


@given(measurements)
def test_a_measured_size_has_its_measured_speed(measured):
    model = build_speed_model(measured, NODE)
    for workers, speed in measured:
        assert model.compute_speed(workers) == pytest.approx(speed, rel=1e-6)


@given(st.floats(1e-3, 1e3), st.floats(0, 1e2), st.sets(st.integers(1, NODE), min_size=2))
def test_between_and_beyond_exact_measurements_of_one_node_the_model_is_exact(a, b, sizes):
    model = build_speed_model(make_speeds(a, b, sizes), NODE)
    for n in range(min(sizes), NODE + 1):
        # Beyond the largest size no model is better than the usual one.
        predicted = model.compute_speed(n)
        assert predicted <= n / (a + b * n) * (1 + 1e-6)
        if n <= max(sizes):
            assert predicted == pytest.approx(n / (a + b * n), rel=1e-3)


@given(measurements)
def test_beyond_the_largest_measured_size_each_worker_adds_less_and_none_takes_away(measured):
    model = build_speed_model(measured, 1001)
    first = max(model.sizes, default=1)
    speeds = [model.compute_speed(n) for n in range(first, first + 20)]
    added = [later - earlier for earlier, later in pairwise(speeds)]
    assert all(one >= -1e-9 * speeds[-1] for one in added)
    assert all(later <= earlier * (1 + 1e-6) + 1e-9 * speeds[-1] for earlier, later in pairwise(added))


def test_several_nodes_have_a_price_until_they_are_measured():
    unmeasured = build_speed_model(((NODE, 80.0),), NODE)
    alone = build_speed_model(((NODE, 80.0),), 2 * NODE)
    assert unmeasured.compute_speed(2 * NODE) == pytest.approx(CROSSING * alone.compute_speed(2 * NODE))
    measured = build_speed_model(((NODE, 80.0), (2 * NODE, 150.0)), NODE)
    assert measured.compute_speed(2 * NODE) == pytest.approx(150.0)


def test_a_size_that_is_slower_than_a_smaller_one_ends_the_reach():
    assert SpeedModel(((4, 72.0), (5, 36.0)), 4).reach == 5
    assert SpeedModel(((4, 72.0), (5, 80.0)), 4).reach == REACH * 5
    assert SpeedModel(((1, 72.0),), 4).reach == 4
    assert SpeedModel((), 4).reach == 4


@given(measurements, st.floats(1e-3, 1e7))
def test_the_needed_workers_are_the_fewest_that_reach_the_speed(measured, speed):
    model = build_speed_model(measured, NODE)
    needed = model.compute_needed_workers(speed)
    if math.isinf(needed):
        assert all(model.compute_speed(n) <= speed * (1 + 1e-6) for n in (1, 10, 100, 1000))
    else:
        assert model.compute_speed(math.nextafter(needed, math.inf)) >= speed * (1 - 1e-6)
        assert all(model.compute_speed(needed * part) <= speed * (1 + 1e-6) for part in (0.1, 0.5, 0.9))


# -- weights and priors --------------------------------------------------------------------------------------


def test_a_speed_of_less_weight_lies_between_the_measured_and_the_predicted_one():
    predicted = build_speed_model(((1, 10.0),), NODE).compute_speed(4)
    measured = ((1, 10.0), (4, 12.0))
    speeds = [
        build_speed_model(measured, NODE, weights=(1.0, weight)).compute_speed(4)
        for weight in (0.0, 0.5, 0.9, 1.0)
    ]
    assert speeds == sorted(speeds, reverse=True)
    assert (speeds[0], speeds[-1]) == pytest.approx((predicted, 12.0))


def test_weights_that_do_not_fit_the_speeds_do_not_count():
    assert build_speed_model(((1, 10.0), (4, 12.0)), NODE, weights=(0.5,)).compute_speed(4) == 12.0


def test_a_prior_gives_the_shape_and_the_measurement_the_scale():
    prior = ((1, 100.0), (4, 200.0), (8, 220.0))
    alone = build_speed_model((), NODE, prior=prior)
    assert alone.compute_speed(8) == 220.0
    model = build_speed_model(((4, 20.0),), NODE, prior=prior)
    assert [model.compute_speed(n) for n in (1, 4, 8)] == pytest.approx([10.0, 20.0, 22.0])


def test_what_was_measured_replaces_the_prior():
    model = build_speed_model(((1, 10.0), (8, 70.0)), NODE, prior=((1, 100.0), (8, 110.0)))
    assert model.compute_speed(8) == 70.0


def test_a_later_job_starts_from_all_that_earlier_ones_have_shown():
    first = pass_on_speeds(((1, 10.0), (2, 19.0)), (1.0, 1.0), ())
    second = pass_on_speeds(((2, 38.0), (4, 60.0)), (1.0, 1.0), first)
    assert dict(second) == pytest.approx({1: 20.0, 2: 38.0, 4: 60.0})
