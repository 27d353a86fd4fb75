"""The claims of generations by the coordinators of two terms, and while the list is away."""

import pytest

from elastane.claims.generations import GenerationClaims
from elastane.claims.history import list_generations
from elastane.claims.place import ClaimsUnavailable
from elastane.claims.terms import OwnTerm, Superseded
from elastane.claims.urls import open_claim_list


@pytest.fixture
def start_term(path):
    def start():
        claims = open_claim_list(str(path), wait_s=0.3)
        own_term = OwnTerm(claims, 1)
        own_term.claim()
        return GenerationClaims(claims, own_term)

    return start


def list_numbers(path):
    held = open_claim_list(str(path)).read()
    return [(claim.term, claim.number, claim.members) for claim in list_generations(held)]


def test_a_generation_gets_one_slot_however_often_it_is_claimed(start_term, path):
    term = start_term()
    assert term.claim(1, (0, 1)) is None
    assert term.claim(1, (0, 1)) is None
    assert term.claim(2, (0,)) is None
    assert list_numbers(path) == [(1, 1, (0, 1)), (1, 2, (0,))]
    assert len(open_claim_list(str(path)).read()) == 3


def test_an_outdated_term_claims_no_generation(start_term, path):
    first = start_term()
    assert first.claim(1, (0, 1)) is None
    second = start_term()
    assert isinstance(first.claim(2, (0,)), Superseded)
    assert second.claim(2, (1,)) is None
    assert isinstance(first.claim(3, (0,)), Superseded)
    assert list_numbers(path) == [(1, 1, (0, 1)), (2, 2, (1,))]


def test_a_new_term_reads_the_generations_of_the_earlier_ones(start_term):
    start_term().claim(1, (0, 1))
    assert [claim.members for claim in start_term().read()] == [(0, 1)]


def test_a_claim_while_the_list_is_away_may_be_repeated(start_term, path):
    term = start_term()
    away = path.with_name("away")
    path.rename(away)
    with pytest.raises(ClaimsUnavailable):
        term.claim(1, (0,))
    away.rename(path)
    assert term.claim(1, (0,)) is None
    assert list_numbers(path) == [(1, 1, (0,))]


def test_a_term_that_is_not_claimed_claims_no_generation(path):
    claims = open_claim_list(str(path), wait_s=0.3)
    with pytest.raises(ClaimsUnavailable, match="is not in the claim list"):
        GenerationClaims(claims, OwnTerm(claims, 1)).claim(1, (0,))
    assert list_numbers(path) == []
