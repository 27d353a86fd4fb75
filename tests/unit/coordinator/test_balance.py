"""Shares follow speeds slowly, and never to and fro."""

import pytest

from elastane.api.membership import Generation, Member
from elastane.coordinator.balance import Balance, compute_notch, evaluate_balance, measure_notches
from elastane.protocol.shares import assign_shares


def generation(number: int = 1, **speeds: float) -> Generation:
    members = tuple(Member(int(name[1:]), "127.0.0.1", 1, speed) for name, speed in speeds.items())
    return Generation(number, 1, members, planned=True)


def weighed(evaluations: int, seconds: dict[int, float], gen: Generation, apart_s: float = 2.0):
    balance, members = Balance(), None
    for index in range(evaluations):
        balance, members = evaluate_balance(balance, gen, seconds, 100.0 + apart_s * index)
    return members


@pytest.mark.parametrize(
    ("speed", "expected"), [(1.0, 0), (0.5, -2), (2.0, 2), (1.19, 1), (1.18, 0), (100, 4), (0.001, -8)]
)
def test_speeds_are_rounded_to_notches(speed, expected) -> None:
    assert compute_notch(speed) == expected


def test_speed_is_relative_to_the_median() -> None:
    assert measure_notches({0: 1.0, 1: 1.0, 2: 2.0}) == {0: 0, 1: 0, 2: -2}


def test_a_worker_half_as_fast_gets_half_as_much_after_three_evaluations() -> None:
    gen = generation(w0=1.0, w1=1.0, w2=1.0)
    seconds = {0: 0.1, 1: 0.1, 2: 0.2}
    assert weighed(3, seconds, gen) is None
    members = weighed(4, seconds, gen)
    assert members is not None
    assert [member.speed for member in members] == pytest.approx([1.0, 1.0, 0.5])


def test_evaluations_lie_two_seconds_apart() -> None:
    assert weighed(9, {0: 0.1, 1: 0.1, 2: 0.2}, generation(w0=1.0, w1=1.0, w2=1.0), apart_s=0.5) is None


def test_one_notch_is_not_worth_a_change() -> None:
    assert weighed(20, {0: 0.1, 1: 0.1, 2: 0.14}, generation(w0=1.0, w1=1.0, w2=1.0)) is None


def test_what_is_already_dealt_by_is_not_dealt_again() -> None:
    assert weighed(20, {0: 0.1, 1: 0.1, 2: 0.2}, generation(w0=1.0, w1=1.0, w2=0.5)) is None


def test_a_spike_is_forgotten() -> None:
    gen, balance = generation(w0=1.0, w1=1.0, w2=1.0), Balance()
    now = 100.0
    for slow in (0.1, 0.3, 0.3, 0.1, 0.3, 0.3, 0.1):
        balance, members = evaluate_balance(balance, gen, {0: 0.1, 1: 0.1, 2: slow}, now)
        assert members is None
        now += 2.0


def test_unknown_speeds_change_nothing() -> None:
    assert weighed(9, {0: 0.1, 1: 0.0}, generation(w0=1.0, w1=1.0)) is None


def test_a_new_generation_is_measured_anew() -> None:
    seconds = {0: 0.1, 1: 0.1, 2: 0.2}
    balance = Balance(1, 2, 0.0)
    balance, members = evaluate_balance(balance, generation(2, w0=1.0, w1=1.0, w2=1.0), seconds, 100.0)
    assert (balance.streak, members) == (0, None)


def test_who_was_dealt_the_least_is_still_measured_and_gets_more_once_it_is_faster() -> None:
    crawling = generation(w0=1.0, w1=1.0, w2=1 / 16)
    shares = assign_shares(8, tuple(member.speed for member in crawling.members))
    start, stop = shares[2]
    assert stop - start == 1
    assert weighed(20, {0: 0.1, 1: 0.1, 2: 1.6}, crawling) is None
    members = weighed(4, {0: 0.1, 1: 0.1, 2: 0.1}, crawling)
    assert members is not None
    assert [member.speed for member in members] == pytest.approx([1.0, 1.0, 1.0])
