"""The bytes that a job sends between sites, by counters that a run reports again and again."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.cluster.controller.jobs.accounts import charge, charge_egress
from elastane.cluster.controller.jobs.egress_account import (
    INTERVAL_S,
    MOST_ADDED_BYTES,
    MOST_COUNTERS,
    EgressAccount,
    count_egress,
    list_closed_egress,
)
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.nouns.config import EgressPrices
from elastane.cluster.nouns.engine import Crossing, Observation
from elastane.cluster.nouns.jobs import DataPlacement, JobSpec
from elastane.cluster.nouns.usage import SentBytes, Use

GB = 10**9
SITES = ("berlin", "boston", "kyoto")
PRICES = (
    EgressPrices(name="berlin", prices={"boston": 0.5, "*": 0.25}),
    EgressPrices(name="boston", prices={"berlin": 1.0}),
)
SPEC = JobSpec(name="j", team="t", script="/train.py", data=DataPlacement(sites=SITES))
JOB = StoredJob(number=1, name="j", team="t", spec=SPEC, uses=(Use(pool="p", terms="owned", devices=1),))


def count(account, *crossings, attempt=1, now_s=100.0, prices=PRICES):
    return count_egress(account, crossings, attempt, sites=SITES, prices=prices, now_s=now_s)


def crossing(worker, sent_bytes, source="berlin", target="boston"):
    return Crossing(worker, source, target, sent_bytes)


@pytest.mark.parametrize(
    ("source", "target", "cost"),
    [
        ("berlin", "boston", 1.0),
        ("berlin", "kyoto", 0.5),
        ("boston", "berlin", 2.0),
        ("boston", "kyoto", 0.0),
        ("kyoto", "berlin", 0.0),
    ],
)
def test_the_price_is_that_of_the_pair_in_this_direction_else_of_other_sites_else_none(source, target, cost):
    assert count(EgressAccount(), crossing(1, 2 * GB, source, target)).spent == cost


def test_only_what_a_counter_has_grown_is_added():
    account = count(EgressAccount(), crossing(1, 2 * GB), crossing(2, GB))
    assert account.spent == 1.5
    assert count(account, crossing(1, 2 * GB), crossing(2, GB)) == account
    assert count(account, crossing(1, 3 * GB), crossing(2, GB)).spent == 2.0
    # The coordinator that has begun meanwhile has not heard of worker 2 yet.
    without = count(account, crossing(1, 3 * GB))
    assert count(without, crossing(1, 3 * GB), crossing(2, GB)).spent == 2.0


def test_a_counter_that_shrinks_gives_nothing_back_and_adds_nothing_twice():
    account = count(EgressAccount(), crossing(1, 2 * GB))
    less = count(account, crossing(1, GB))
    assert less == account
    assert count(less, crossing(1, 2 * GB)) == account


def test_the_workers_of_another_attempt_begin_at_zero():
    account = count(EgressAccount(), crossing(1, 2 * GB))
    again = count(account, crossing(1, GB), attempt=2)
    assert again.spent == 1.5
    assert count(again, crossing(1, 5 * GB), attempt=1) == again


def test_counters_without_a_readable_account_are_only_noted():
    noted = count(None, crossing(1, 2 * GB))
    assert (noted.spent, noted.sent) == (0.0, ())
    assert count(noted, crossing(1, 3 * GB)).spent == 0.5


def test_bytes_at_sites_that_are_not_those_of_the_job_do_not_count():
    account = EgressAccount()
    foreign = crossing(1, GB, "berlin", "mars"), crossing(1, GB, "mars", "berlin"), crossing(1, GB, "x", "x")
    assert count(account, *foreign, crossing(1, GB, "berlin", "berlin")) == account


def test_what_a_run_can_claim_at_once_is_bounded():
    some = [crossing(worker, 2**62, a, b) for worker in range(50) for a in SITES for b in SITES]
    account = count(EgressAccount(), *some)
    assert sum(entry.sent_bytes for entry in account.sent) == MOST_ADDED_BYTES
    many = count(EgressAccount(), *(crossing(worker, 1) for worker in range(MOST_COUNTERS + 10)))
    assert len(many.counters) == MOST_COUNTERS
    assert "9 berlin>boston" not in many.counters
    assert f"{MOST_COUNTERS + 9} berlin>boston" in many.counters


def test_a_new_price_counts_from_then_on():
    account = count(EgressAccount(), crossing(1, GB))
    dearer = (EgressPrices(name="berlin", prices={"boston": 2.0}),)
    account = count(account, crossing(1, 2 * GB), prices=dearer)
    assert account.spent == 2.5
    assert account.sent == (
        SentBytes(source="berlin", target="boston", sent_bytes=GB, price=0.5),
        SentBytes(source="berlin", target="boston", sent_bytes=GB, price=2.0),
    )


@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_closed_and_open_intervals_hold_every_byte_once(seed):
    """However reports are lost or repeated, and whenever the interval is closed."""
    rng = random.Random(seed)
    job, closed, now_s, attempt, totals = JOB, [], 0.0, 1, dict[int, int]()
    expected = 0
    for _ in range(40):
        now_s += rng.choice([1.0, 5.0, INTERVAL_S])
        before = job
        match rng.random():
            case chance if chance < 0.1:
                attempt, totals = attempt + 1, {}
            case chance if chance < 0.3:
                uses = (Use(pool="p", terms="owned", devices=rng.randint(1, 9)),)
                job = charge(job, uses if rng.random() < 0.7 else (), now_s)
            case _:
                worker = rng.randint(0, 3)
                more = rng.randint(0, GB)
                totals[worker] = totals.get(worker, 0) + more
                expected += more
                some = [crossing(each, total) for each, total in totals.items()]
                seen = Observation(job="j", attempt=attempt, present=True, crossings=tuple(some))
                job = charge_egress(job, seen, PRICES, now_s)
        closed += list_closed_egress(before.egress, job.egress)
    assert sum(entry.sent_bytes for entry in (*closed, *job.egress.sent)) == expected
    assert job.egress.spent == pytest.approx(expected / GB * 0.5)
    assert job.spent == pytest.approx(job.egress.spent)
    for interval in closed:
        middle_s = (interval.from_s + interval.until_s) / 2
        parts = interval.clip(-1.0, middle_s), interval.clip(middle_s, now_s)
        assert sum(parts) == pytest.approx(1.0)


def test_a_job_that_is_gone_reports_nothing():
    gone = Observation(job="j", attempt=1, present=False, crossings=(crossing(1, GB),))
    assert charge_egress(JOB, gone, PRICES, 1.0) is JOB
    assert msgspec.structs.replace(JOB).egress == EgressAccount()
