"""The term of one coordinator, beside those of others and while the list is away."""

import threading

import pytest

from elastane.run.machines.claims.directory import DirectoryPlace
from elastane.run.machines.claims.records import HeldSlot
from elastane.run.machines.claims.terms import OwnTerm
from elastane.run.machines.claims.urls import open_claim_list


@pytest.fixture
def new_term(path):
    return lambda at_least=1: OwnTerm(open_claim_list(str(path), wait_s=2.0), at_least)


def list_numbers(path):
    return [one.record.number for one in open_claim_list(str(path)).read()]


def test_each_term_is_higher_and_ends_the_one_before(new_term, path):
    first, second = new_term(), new_term()
    assert first.claim() == 1
    assert first.check() is None
    assert second.claim() == 2
    assert second.check() is None
    assert "term 1 ends" in first.check().what
    assert "claimed term 2" in first.check().what
    assert list_numbers(path) == [1, 2]


def test_a_term_is_known_to_be_in_charge_only_while_the_list_shows_it(new_term, path):
    first, second = new_term(), new_term()
    assert not first.is_in_charge()
    first.claim()
    assert first.is_in_charge()
    away = path.with_name("away")
    path.rename(away)
    assert not first.is_in_charge()
    away.rename(path)
    assert first.is_in_charge()
    second.claim()
    assert not first.is_in_charge()
    assert second.is_in_charge()


def test_a_term_knows_whether_the_list_answers(new_term, path):
    term, late = new_term(), new_term()
    assert (term.claim(), term.answered, term.waited) == (1, True, False)
    away = path.with_name("away")
    path.rename(away)
    path.touch()
    assert (term.check(), term.answered) == (None, False)
    late.claim()
    assert (late.claimed, late.answered, late.waited) == (False, False, True)
    path.unlink()
    away.rename(path)
    assert (term.check(), term.answered, term.waited) == (None, True, False)
    assert (late.claim(), late.answered, late.waited) == (2, True, True)


def test_a_number_of_the_agent_is_never_undercut(new_term, path):
    assert new_term(5).claim() == 5
    assert new_term(3).claim() == 6
    assert list_numbers(path) == [5, 6]


def test_claimants_at_once_get_different_terms_and_one_stays(new_term):
    terms = [new_term() for _ in range(6)]
    threads = [threading.Thread(target=term.claim) for term in terms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(term.number for term in terms) == [1, 2, 3, 4, 5, 6]
    assert [term.number for term in terms if term.check() is None] == [6]


def test_a_term_without_a_claim_gives_way_to_an_equal_one_and_is_claimed_otherwise(new_term, path):
    away = path.with_name("away")
    path.rename(away)
    first, second = new_term(2), new_term(2)
    assert (first.claim(), second.claim()) == (2, 2)
    assert first.check() is None
    away.rename(path)
    assert first.check() is None
    assert list_numbers(path) == [2]
    assert "claimed term 2" in second.check().what
    assert first.check() is None
    assert list_numbers(path) == [2]


def test_a_claim_of_unknown_outcome_is_not_repeated_in_another_slot(new_term, path, monkeypatch):
    term, create = new_term(), DirectoryPlace.create

    def write_and_hang(place, slot, content):
        create(place, slot, content)
        threading.Event().wait(4.0)

    monkeypatch.setattr(DirectoryPlace, "create", write_and_hang)
    assert term.claim() == 1
    monkeypatch.undo()
    held = open_claim_list(str(path)).read()
    for _ in range(4):
        # The first checks wait for the call that hangs.
        assert term.check() is None
    assert open_claim_list(str(path)).read() == held
    assert [one.slot for one in held] == [1]
    assert isinstance(held[0], HeldSlot)


def test_a_higher_term_is_seen_although_an_older_record_is_damaged(new_term, path):
    first, second = new_term(), new_term()
    first.claim()
    (path / "1").write_bytes(b"")
    assert first.check() is None
    # The damaged record counts as a term, so its number is not given away again.
    assert second.claim() == 2
    assert "claimed term 2" in first.check().what
