"""No client exceeds its rate, and no client below its rate has to wait."""

from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.controller.rest import context
from elastane.cluster.controller.rest.context import Rate, Rates, take_request

limits = st.builds(Rate, per_s=st.floats(0.1, 100), burst=st.integers(1, 50))
pauses = st.lists(st.floats(0, 5), max_size=60)


@given(limits, pauses)
def test_no_interval_passes_more_requests_than_burst_and_rate_allow(rate, pauses):
    bucket, now_s, passed = None, 1000.0, []
    for pause in pauses:
        now_s += pause
        bucket, wait_s = take_request(bucket, rate, now_s)
        if not wait_s:
            passed.append(now_s)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            most = rate.burst + rate.per_s * (passed[last] - passed[first])
            assert last - first + 1 <= most + 1e-6


@given(limits, pauses)
def test_a_client_that_waits_the_named_time_passes(rate, pauses):
    bucket, now_s = None, 0.0
    for pause in pauses:
        now_s += pause
        bucket, wait_s = take_request(bucket, rate, now_s)
        if wait_s:
            now_s += wait_s * (1 + 1e-9) + 1e-9
            bucket, wait_s = take_request(bucket, rate, now_s)
            assert not wait_s


@given(limits, st.floats(0, 10))
def test_a_clock_that_goes_back_allows_no_more_requests(rate, back):
    bucket, _ = take_request(None, rate, 100.0)
    after, _ = take_request(bucket, rate, 100.0 - back)
    assert after.left <= bucket.left


def test_many_client_names_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(context, "REMEMBERED", 3)
    shared = Rates(Rate(per_s=1, burst=1))
    for number in range(100):
        assert shared.wait_s(f"name-{number}", 0.0) == 0
    assert len(shared._buckets) == 3
    assert shared.wait_s("name-99", 0.0) > 0
