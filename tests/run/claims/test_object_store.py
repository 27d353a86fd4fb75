"""A claim list on S3: stores without conditional creates, lost replies, conflicts and refusals."""

import pytest

from elastane.run.machines.claims.place import ClaimsUnavailable, ClaimsUnusable
from elastane.run.machines.claims.records import HeldSlot
from elastane.run.machines.claims.urls import open_claim_list

# s3fs closes its sockets when the interpreter ends, not before.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture
def s3(make_s3):
    made = make_s3()
    yield made
    made.close()


@pytest.mark.parametrize("fault", ["ignores_conditions", "refuses_conditions"])
def test_a_store_without_conditional_creates_is_refused(s3, term, fault):
    setattr(s3.server, fault, True)
    listed = s3.open()
    for refused in (listed.prove_writable, lambda: listed.claim(1, term())):
        with pytest.raises(ClaimsUnusable, match="conditional creates"):
            refused()
    assert s3.list_names() == []


def test_the_check_leaves_no_object(s3, term):
    listed = s3.open()
    listed.claim(1, term())
    listed.claim(2, term(2))
    assert s3.list_names() == ["1", "2"]


def test_credentials_that_may_not_write_are_refused_in_words(s3):
    s3.server.denied = "/"
    with pytest.raises(ClaimsUnusable, match=r"cannot write .*permission denied") as caught:
        s3.open().prove_writable()
    assert "read and write objects" in caught.value.do


def test_a_conflict_of_two_writes_is_tried_again(s3, term):
    listed = s3.open()
    listed.claim(1, term())
    s3.server.conflicts = 2
    assert listed.claim(2, record := term(2)).holds(record)
    assert s3.server.conflicts == 0


def test_other_objects_are_no_slots(s3, term):
    for name in ("x", "01", "2.json", "1/1", "9"):
        s3.put(name, b"{}")
    listed = s3.open()
    assert listed.claim(1, record := term()).holds(record)
    assert listed.read() == (HeldSlot(1, record),)


def test_a_missing_bucket_and_a_dead_endpoint_are_errors_in_words(s3, term, monkeypatch):
    missing = open_claim_list("s3://no-such-bucket/list")
    for call in (missing.read, lambda: missing.claim(1, term())):
        with pytest.raises(ClaimsUnusable, match="bucket does not exist"):
            call()
    s3.server.away = True
    with pytest.raises(ClaimsUnavailable, match=f"s3://{s3.bucket}/runs/train"):
        s3.open(wait_s=2.0).read()
