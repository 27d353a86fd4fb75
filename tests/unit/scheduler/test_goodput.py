"""The curve fits the measurements, and has the properties that growth needs."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.scheduler.goodput import DEFAULT, SpeedCurve, fit_speed_curve

speeds = st.lists(st.tuples(st.integers(1, 1000), st.floats(1e-3, 1e6)), max_size=8).map(tuple)


@given(st.floats(1e-3, 1e3), st.floats(0, 1e2), st.lists(st.integers(1, 64), min_size=2, unique=True))
def test_exact_measurements_give_the_curve_back(a, b, sizes):
    curve = SpeedCurve(a, b)
    found = fit_speed_curve(tuple((n, curve.compute_speed(n)) for n in sizes))
    for n in sizes:
        assert found.compute_speed(n) == pytest.approx(curve.compute_speed(n), rel=1e-3)


@given(speeds)
def test_more_workers_are_never_slower_and_each_adds_less(measured):
    curve = fit_speed_curve(measured)
    added = [curve.compute_speed(n + 1) - curve.compute_speed(n) for n in range(1, 40)]
    assert all(more >= -1e-9 * curve.compute_speed(40) for more in added)
    assert all(
        later <= earlier * (1 + 1e-6) + 1e-9 * curve.compute_speed(40) for earlier, later in pairwise(added)
    )


def test_one_measurement_scales_the_default_curve():
    found = fit_speed_curve(((4, 40.0),))
    assert found.compute_speed(4) == pytest.approx(40.0)
    assert found.compute_efficiency(4, 5) == pytest.approx(DEFAULT.compute_efficiency(4, 5))


@given(st.floats(0.1, 500.0))
def test_the_needed_workers_reach_the_speed(speed):
    needed = DEFAULT.compute_needed_workers(speed)
    assert needed == float("inf") or DEFAULT.compute_speed(needed) == pytest.approx(speed)
