"""A claim list on S3: stores without conditional creates, lost replies, conflicts and refusals."""

import pytest

from elastane.claims.place import ClaimsUnavailable, ClaimsUnusable
from elastane.claims.records import HeldSlot
from elastane.claims.urls import open_claim_list

# s3fs closes its sockets when the interpreter ends, not before.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture
def s3(make_s3):
    made = make_s3()
    yield made
    made.close()


def list_names(s3):
    return [entry["Key"] for entry in s3.client.list_objects_v2(Bucket=s3.bucket).get("Contents", ())]


@pytest.mark.parametrize("fault", ["ignores_conditions", "refuses_conditions"])
def test_a_store_without_conditional_creates_is_refused(s3, term, fault):
    setattr(s3.server, fault, True)
    with pytest.raises(ClaimsUnusable, match="conditional creates"):
        s3.open().claim(1, term())
    assert list_names(s3) == []


def test_the_check_leaves_no_object(s3, term):
    listed = s3.open()
    listed.claim(1, term())
    listed.claim(2, term(2))
    assert list_names(s3) == ["runs/train/1", "runs/train/2"]


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
