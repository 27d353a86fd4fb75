"""A round leaves out the virtual ranks of absent sites, unless a member may have committed their results."""

import pytest

from elastane.run.nouns.membership import Member
from elastane.run.nouns.sites import deal_ranks_to_sites, find_absent_sites, find_missing_sites
from elastane.run.protocol.absence import choose_left_out
from elastane.run.protocol.shares import assign_ranks

US, EU = frozenset({2, 3}), frozenset({0, 1})


@pytest.mark.parametrize(
    ("absent", "before", "known", "is_summed", "is_begun", "expected"),
    [
        pytest.param((), (), (), False, False, frozenset(), id="no site is absent"),
        pytest.param(US, (), {0}, False, False, US, id="it dies before any sum: the others keep their work"),
        pytest.param(US, (), {0, 1, 2, 3}, True, True, frozenset(), id="all is known: it may be committed"),
        pytest.param(US, (), {0, 1}, True, True, None, id="sums without its leaves: no member has committed"),
        pytest.param(US, (), {0, 1, 2, 3}, False, True, None, id="some sums have its results, some are lost"),
        pytest.param(US, US, {0, 1}, False, True, US, id="left out already: sums have nothing of it"),
        pytest.param((), US, (), False, True, US, id="a site that is back waits for the next round"),
        pytest.param(EU, US, (), False, False, EU | US, id="another site is lost, too"),
        pytest.param(
            EU, US, (), False, True, None, id="another site is lost when some sums have its results"
        ),
        pytest.param(EU, US, EU, True, True, US, id="another site is lost when all of it is known"),
    ],
)
def test_what_a_round_leaves_out(absent, before, known, is_summed, is_begun, expected):
    found = choose_left_out(
        frozenset(absent), frozenset(before), known, is_summed=is_summed, is_begun=is_begun
    )
    assert found == expected


def make_members(*sites):
    return [Member(worker, "", 0, sites=some) for worker, some in enumerate(sites)]


def test_sites_share_the_virtual_ranks_in_the_order_of_their_names():
    assert deal_ranks_to_sites(("us", "eu"), 4) == ("eu", "eu", "us", "us")


def test_rounds_leave_out_only_what_the_rule_says_and_never_everything():
    ranks = deal_ranks_to_sites(("eu", "us"), 4)
    eu, nobody = make_members(("eu",), ("eu",)), make_members((), ("jp",))
    assert find_missing_sites(ranks, eu) == ("us",)
    assert find_absent_sites(ranks, "skip", eu) == ("us",)
    assert find_absent_sites(ranks, "wait", eu) == ()
    assert find_missing_sites(ranks, nobody) == ("eu", "us")
    assert find_absent_sites(ranks, "skip", nobody) == ()
    assert find_missing_sites(ranks, make_members(("eu", "us"))) == ()


def assign(computable, assigned=None, known=frozenset(), speeds=None):
    speeds = speeds or dict.fromkeys(computable, 1.0)
    return assign_ranks(4, speeds, dict.fromkeys(speeds, ""), assigned or {}, known, 1, computable)


def test_virtual_ranks_are_assigned_to_members_of_their_site_by_speed():
    computable = {0: EU, 1: EU, 2: US}
    assert assign(computable) == {0: {0}, 1: {1}, 2: US}
    assert assign(computable, speeds={0: 4.0, 1: 1.0, 2: 1.0}) == {0: EU, 1: frozenset(), 2: US}


def test_a_member_of_two_sites_helps_where_it_is_needed():
    assert assign({0: EU, 1: EU | US}) == {0: EU, 1: US}
    assert assign({0: EU | US}) == {0: EU | US}


def test_a_virtual_rank_that_no_member_may_compute_is_assigned_to_none():
    assert assign({0: EU}) == {0: EU}
    assert assign({0: EU, 1: EU}, {0: frozenset({0})}, known=US) == {0: {0}, 1: {1}}
