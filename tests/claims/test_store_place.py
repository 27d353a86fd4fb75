"""Claim lists in the controller's store: odd rows, several runs, and a job that is forgotten."""

import shutil
import sqlite3

import pytest

from elastane.claims.claim_list import ClaimList
from elastane.claims.place import ClaimsUnavailable
from elastane.claims.records import HeldSlot, Unreadable
from elastane.controller.store.claims import StorePlace, forget_claims
from elastane.controller.store.database import Store


@pytest.fixture
def path(tmp_path, migrated_file):
    return shutil.copyfile(migrated_file, tmp_path / "store.db")


@pytest.fixture
def store(path):
    opened = Store(f"sqlite:///{path}")
    yield opened
    opened.close()


@pytest.mark.parametrize("odd", ["text", 7, 1.5])
def test_a_value_of_another_type_costs_only_its_slot(store, path, term, odd):
    with sqlite3.connect(path) as raw:
        raw.execute("INSERT INTO claims (run, slot, content) VALUES ('train', 1, ?)", (odd,))
    raw.close()
    listed = ClaimList(StorePlace(store, "train"))
    assert isinstance(listed.claim(1, term()).record, Unreadable)
    assert listed.claim(2, record := term()).holds(record)
    assert [one.slot for one in listed.read()] == [1, 2]


def test_runs_have_lists_of_their_own_until_they_are_forgotten(store, term):
    mine, yours = (ClaimList(StorePlace(store, name), wait_s=2.0) for name in ("train", "tune"))
    mine.claim(1, first := term())
    assert yours.claim(1, second := term()).holds(second)
    with store.begin_write() as tx:
        forget_claims(tx, "train")
    assert yours.read() == (HeldSlot(1, second),)
    assert ClaimList(StorePlace(store, "train")).read() == ()
    # A process of the forgotten run does not begin a new list.
    with pytest.raises(ClaimsUnavailable, match="lost slot 1, and 1 were held"):
        mine.claim(1, first)


def test_a_removed_store_is_an_outage(store, path, term):
    listed = ClaimList(StorePlace(store, "train"), wait_s=2.0)
    listed.claim(1, term())
    path.unlink()
    with pytest.raises(ClaimsUnavailable, match="store"):
        listed.claim(2, term(2))
