"""Shares follow speeds slowly, and never back and forth."""

import pytest

from elastane.run.coordinator.balance import Balance, compute_notch, evaluate_balance, measure_notches
from elastane.run.nouns.membership import Generation, Member
from elastane.run.protocol.shares import assign_shares


def make_generation(number: int = 1, **speeds: float) -> Generation:
    members = tuple(Member(int(name[1:]), "127.0.0.1", 1, speed) for name, speed in speeds.items())
    return Generation(number, 1, members, planned=True)


def evaluate_repeatedly(evaluations: int, seconds: dict[int, float], gen: Generation, apart_s: float = 2.0):
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
    gen = make_generation(w0=1.0, w1=1.0, w2=1.0)
    seconds = {0: 0.1, 1: 0.1, 2: 0.2}
    assert evaluate_repeatedly(3, seconds, gen) is None
    members = evaluate_repeatedly(4, seconds, gen)
    assert members is not None
    assert [member.speed for member in members] == pytest.approx([1.0, 1.0, 0.5])


def test_evaluations_are_two_seconds_apart() -> None:
    assert (
        evaluate_repeatedly(9, {0: 0.1, 1: 0.1, 2: 0.2}, make_generation(w0=1.0, w1=1.0, w2=1.0), apart_s=0.5)
        is None
    )


def test_a_difference_of_one_notch_changes_nothing() -> None:
    assert evaluate_repeatedly(20, {0: 0.1, 1: 0.1, 2: 0.14}, make_generation(w0=1.0, w1=1.0, w2=1.0)) is None


def test_shares_that_fit_the_speeds_stay() -> None:
    assert evaluate_repeatedly(20, {0: 0.1, 1: 0.1, 2: 0.2}, make_generation(w0=1.0, w1=1.0, w2=0.5)) is None


def test_a_short_slowdown_changes_nothing() -> None:
    gen, balance = make_generation(w0=1.0, w1=1.0, w2=1.0), Balance()
    now = 100.0
    for seconds in (0.1, 0.3, 0.3, 0.1, 0.3, 0.3, 0.1):
        balance, members = evaluate_balance(balance, gen, {0: 0.1, 1: 0.1, 2: seconds}, now)
        assert members is None
        now += 2.0


def test_unknown_speeds_change_nothing() -> None:
    assert evaluate_repeatedly(9, {0: 0.1, 1: 0.0}, make_generation(w0=1.0, w1=1.0)) is None


def test_a_new_generation_restarts_the_evaluations() -> None:
    seconds = {0: 0.1, 1: 0.1, 2: 0.2}
    balance = Balance(1, 2, 0.0)
    balance, members = evaluate_balance(balance, make_generation(2, w0=1.0, w1=1.0, w2=1.0), seconds, 100.0)
    assert (balance.streak, members) == (0, None)


def test_the_slowest_worker_keeps_one_virtual_rank_and_gets_more_once_it_is_faster() -> None:
    slow = make_generation(w0=1.0, w1=1.0, w2=1 / 16)
    shares = assign_shares(8, tuple(member.speed for member in slow.members))
    start, stop = shares[2]
    assert stop - start == 1
    assert evaluate_repeatedly(20, {0: 0.1, 1: 0.1, 2: 1.6}, slow) is None
    members = evaluate_repeatedly(4, {0: 0.1, 1: 0.1, 2: 0.1}, slow)
    assert members is not None
    assert [member.speed for member in members] == pytest.approx([1.0, 1.0, 1.0])
