"""The choice of spot checks, and the judgement of their results."""

import math

import msgspec
import pytest

from elastane.run.protocol.messages import Leaf, SpotCheck, Vote
from elastane.run.protocol.spot_checks import (
    FIRST_STEPS,
    Finding,
    Judgement,
    choose_spot_check,
    is_disputed,
    judge_results,
)

EVEN = {worker: frozenset((2 * worker, 2 * worker + 1)) for worker in range(4)}
PRINTS = ("a", "b", "c")


def make_leaf(worker, prints=PRINTS, rank=5, **values):
    return Leaf(rank, worker, loss=0.5, weight=2.0, samples=2, fingerprints=prints, **values)


def judge(owned, *recomputed, workers=(0, 1, 2)):
    """Judge the results of virtual rank 5: that of its worker, then those of all workers in their order."""
    votes = {worker: Vote(generation=1, round=1, leaves=()) for worker in workers}
    for leaf in recomputed:
        vote = votes[leaf.worker]
        votes[leaf.worker] = msgspec.structs.replace(vote, recomputed=(*vote.recomputed, leaf))
    return judge_results({5: owned}, votes)


# -- the choice ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["auto", "every"])
@pytest.mark.parametrize("step", range(1, 60))
def test_a_worker_checks_a_virtual_rank_of_another(rule, step):
    check = choose_spot_check(rule, step, EVEN, {1, 3}, 0)
    assert check is not None
    assert check.virtual_rank not in EVEN[check.worker]
    assert check.worker in {1, 3}, "newcomers check others in their first steps"


def test_every_worker_and_every_virtual_rank_has_its_turn():
    checks = [choose_spot_check("every", step, EVEN, (), 0) for step in range(200)]
    assert {check.worker for check in checks} == set(EVEN)
    assert {check.virtual_rank for check in checks} == set(range(8))


@pytest.mark.parametrize(("shares", "interval"), [(EVEN, 125), ({0: {0}, 1: {1}}, 250)])
def test_after_the_first_steps_one_microbatch_in_many_is_computed_once_more(shares, interval):
    shares = {worker: frozenset(ranks) for worker, ranks in shares.items()}
    for newcomers in ((), (0, 1)):
        checked = [
            step
            for step in range(1, 1001)
            if choose_spot_check("auto", step, shares, newcomers, FIRST_STEPS + step) is not None
        ]
        assert checked == list(range(interval, 1001, interval))


@pytest.mark.parametrize(("each", "checked"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_the_checks_of_a_join_take_no_longer_than_a_step(each, checked):
    shares = {worker: frozenset(range(each * worker, each * (worker + 1))) for worker in range(4)}
    checks = [choose_spot_check("auto", 7 + before, shares, {3}, before) for before in range(10)]
    assert [check is not None for check in checks] == [before < checked for before in range(10)]


def test_no_check_without_another_worker_or_if_they_are_off():
    assert choose_spot_check("every", 7, {3: frozenset(range(8))}, {3}, 0) is None
    assert choose_spot_check("off", 7, EVEN, EVEN, 0) is None


def test_a_worker_without_virtual_ranks_checks_one_of_another():
    shares = {0: frozenset((0,)), 1: frozenset[int]()}
    assert {choose_spot_check("every", step, shares, (), 0) for step in range(50)} == {SpotCheck(0, 1)}


# -- the judgement ------------------------------------------------------------------------------------------


def test_equal_results_agree_also_if_a_logged_value_is_not_a_number():
    sums = {"logged": math.nan}
    assert judge(make_leaf(0, sums=sums), make_leaf(1, sums=sums)) == Judgement(agreed=1)


@pytest.mark.parametrize(
    "leaf",
    [
        pytest.param(make_leaf(1, ("a", "x", "c")), id="a gradient"),
        pytest.param(msgspec.structs.replace(make_leaf(1), loss=0.25), id="the loss"),
        pytest.param(msgspec.structs.replace(make_leaf(1), samples=3), id="the samples"),
        pytest.param(make_leaf(1, sums={"logged": 1.0}), id="a logged value"),
    ],
)
def test_a_third_worker_computes_what_two_disagree_about(leaf):
    judgement = judge(make_leaf(0), leaf)
    assert judgement == Judgement(virtual_rank=5, needed=frozenset({2}))


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_of_three_workers_the_one_that_differs_is_wrong(wrong):
    leaves = [make_leaf(worker, ("a", "x" if worker == wrong else "b", "c")) for worker in range(3)]
    if wrong == 2:
        # The first two agree, so the third is not asked; it has computed the virtual rank before a death.
        assert judge(*leaves).finding == Finding(5, (0, 1, 2), 2, 1)
        return
    assert judge(*leaves).finding == Finding(5, (0, 1, 2), wrong, 1)


def test_of_three_different_results_the_unconfirmed_ones_are_wrong():
    leaves = [make_leaf(worker, (f"{worker}", "b", "c")) for worker in range(3)]
    assert judge(*leaves).needed == {0, 1, 2}
    again = make_leaf(0), make_leaf(1)
    assert judge(*leaves, *again).needed == {2}, "all must judge by the same results"
    # Workers 0 and 1 are found when the round is repeated.
    assert judge(*leaves, *again, make_leaf(2, ("x",))).finding == Finding(5, (0, 1, 2), 2, 0)
    assert judge(leaves[0], make_leaf(1), leaves[2], leaves[0], *again[1:], make_leaf(2)).finding.wrong == 2
    assert judge(*leaves, *leaves).finding == Finding(5, (0, 1, 2), None, 0)


def test_of_two_workers_the_one_with_a_result_that_the_other_does_not_confirm_is_wrong():
    first, other = make_leaf(0), make_leaf(1, ("a", "b", "x"))
    assert judge(first, other, workers=(0, 1)).needed == {0, 1}
    assert judge(first, other, make_leaf(0), workers=(0, 1)).needed == {1}
    again = judge(first, other, make_leaf(0), make_leaf(1), workers=(0, 1))
    assert again.finding == Finding(5, (0, 1), 1, 2)


@pytest.mark.parametrize("again", ["b", "changed"])
def test_two_workers_with_results_of_their_own_cannot_be_decided(again):
    """The script is probably the cause, also if what it keeps changes with each microbatch."""
    first, other = make_leaf(0), make_leaf(1, ("a", "x", "c"))
    judgement = judge(first, other, make_leaf(0, ("a", again, "c")), other, workers=(0, 1))
    assert judgement.finding == Finding(5, (0, 1), None, 1)


def test_a_worker_that_contradicts_itself_is_wrong_if_another_one_agrees_with_it():
    """It was wrong as a checker, and then took over the virtual rank of a dead worker."""
    assert judge(make_leaf(0), make_leaf(0, ("x",)), make_leaf(1)).finding == Finding(5, (0, 1), 0, 0)


def test_another_loss_with_the_same_gradients_names_no_parameter():
    leaf = msgspec.structs.replace(make_leaf(1), loss=0.25)
    assert judge(make_leaf(0), leaf, make_leaf(2)).finding == Finding(5, (0, 1, 2), 1, None)


def test_a_result_that_differs_from_that_of_a_worker_that_has_died_voids_the_round():
    assert judge(make_leaf(3), make_leaf(0, ("x",)), workers=(0, 1)) == Judgement(void=True)
    assert judge(make_leaf(3), make_leaf(0), workers=(0, 1)) == Judgement(agreed=1)


def test_a_sum_with_an_unchecked_result_of_a_worker_that_has_died_voids_the_round():
    votes = {
        0: Vote(generation=1, round=1, leaves=()),
        1: Vote(generation=1, round=1, leaves=(), unchecked=True),
    }
    assert judge_results({}, votes) == Judgement(void=True)


def test_results_that_differ_are_a_dispute_before_all_votes_are_here():
    """If the membership changes now, the worker that differs may be the only one left."""
    vote = Vote(generation=1, round=1, leaves=(), recomputed=(make_leaf(0, ("x",)),))
    assert is_disputed({5: make_leaf(3)}, {0: vote})
    assert not is_disputed({5: make_leaf(3, ("x",))}, {0: vote})
    assert not is_disputed({}, {0: vote}), "the other result has not arrived"


def test_results_without_digests_or_of_one_worker_alone_are_not_compared():
    assert judge(make_leaf(0, ()), make_leaf(1)) == Judgement()
    assert judge(make_leaf(1), make_leaf(1, ("x",))) == Judgement()
    assert judge(Leaf(5, 0, fingerprints=PRINTS), Leaf(5, 1, fingerprints=PRINTS)) == Judgement()
