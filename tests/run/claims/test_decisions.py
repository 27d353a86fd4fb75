"""The claims of generations and outcomes by the coordinators of two terms, and while the list is away."""

import pytest

from elastane.run.machines.claims.decisions import DecisionClaims
from elastane.run.machines.claims.history import list_generations
from elastane.run.machines.claims.place import ClaimsUnavailable
from elastane.run.machines.claims.terms import OwnTerm, Superseded
from elastane.run.machines.claims.urls import open_claim_list
from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.nouns.control import RunOver


@pytest.fixture
def start_term(path):
    def start(first_term=1):
        claims = open_claim_list(str(path), wait_s=0.3)
        own_term = OwnTerm(claims, 1)
        own_term.claim()
        return DecisionClaims(claims, own_term, first_term)

    return start


def list_numbers(path):
    held = open_claim_list(str(path)).read()
    return [(claim.term, claim.number, claim.members) for claim in list_generations(held)]


def test_a_generation_gets_one_slot_however_often_it_is_claimed(start_term, path):
    term = start_term()
    assert term.claim_generation(1, (0, 1)) is None
    assert term.claim_generation(1, (0, 1)) is None
    assert term.claim_generation(2, (0,)) is None
    assert list_numbers(path) == [(1, 1, (0, 1)), (1, 2, (0,))]
    assert len(open_claim_list(str(path)).read()) == 3


def test_an_outdated_term_claims_no_generation(start_term, path):
    first = start_term()
    assert first.claim_generation(1, (0, 1)) is None
    second = start_term()
    assert isinstance(first.claim_generation(2, (0,)), Superseded)
    assert second.claim_generation(2, (1,)) is None
    assert isinstance(first.claim_generation(3, (0,)), Superseded)
    assert list_numbers(path) == [(1, 1, (0, 1)), (2, 2, (1,))]


def test_a_new_term_reads_the_generations_of_the_earlier_ones(start_term):
    start_term().claim_generation(1, (0, 1))
    assert [claim.members for claim in start_term().read()[0]] == [(0, 1)]


def test_a_claim_while_the_list_is_away_may_be_repeated(start_term, path):
    term = start_term()
    away = path.with_name("away")
    path.rename(away)
    with pytest.raises(ClaimsUnavailable):
        term.claim_generation(1, (0,))
    away.rename(path)
    assert term.claim_generation(1, (0,)) is None
    assert list_numbers(path) == [(1, 1, (0,))]


def test_a_term_that_is_not_claimed_claims_no_generation(path):
    claims = open_claim_list(str(path), wait_s=0.3)
    with pytest.raises(ClaimsUnavailable, match="is not in the claim list"):
        DecisionClaims(claims, OwnTerm(claims, 1)).claim_generation(1, (0,))
    assert list_numbers(path) == []


def test_the_first_outcome_is_final_for_every_later_term_of_the_attempt(start_term):
    first, over = start_term(), RunOver(code=1, why="no", traceback="e" * 9000, lost=True)
    assert first.claim_outcome("run.failed", over, "worker 1", {}) is None
    assert first.claim_outcome("run.failed", over, "worker 1", {}) is None
    second = start_term()
    _, outcome = second.read()
    assert (outcome.event, outcome.why, outcome.lost, len(outcome.traceback)) == (
        "run.failed",
        "no",
        True,
        4000,
    )
    assert isinstance(first.claim_outcome("run.finished", RunOver(code=0), "", {}), Superseded)
    assert start_term(first_term=3).read()[1] is None


def test_an_outcome_with_a_long_list_of_files_is_claimed_without_it(start_term):
    term = start_term()
    files = {f"model-{number:05}.safetensors": WrittenFile(1, "0" * 32) for number in range(5000)}
    assert term.claim_outcome("run.finished", RunOver(code=0), "coordinator", files) is None
    assert start_term().read()[1].files == {}


def test_an_outcome_names_the_files_of_the_model(start_term):
    files = {"model.safetensors": WrittenFile(1, "0" * 32)}
    assert start_term().claim_outcome("run.finished", RunOver(code=0), "coordinator", files) is None
    assert start_term().read()[1].files == files
