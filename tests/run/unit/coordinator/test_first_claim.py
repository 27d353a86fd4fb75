"""The claim of a term in a run on several machines: what a coordinator does if the list refuses it."""

import os

import pytest

from elastane.run.coordinator.__main__ import _claim_surely
from elastane.run.machines.claims import directory
from elastane.run.machines.claims.terms import OwnTerm
from elastane.run.machines.claims.urls import open_claim_list


class Refusals:
    """A claim list that refuses so many claims, as credentials that have expired do."""

    def __init__(self, path, monkeypatch):
        self.left, self.create = 0, directory.create_file
        monkeypatch.setattr(directory, "create_file", self.refuse)
        monkeypatch.setattr("elastane.run.coordinator.__main__.CLAIM_TERM_AGAIN_S", 0.0)
        self.term = OwnTerm(open_claim_list(str(path), wait_s=1.0), 1)

    def refuse(self, path, content, *, mode):
        if self.left:
            self.left -= 1
            raise PermissionError(13, "Permission denied", str(path))
        return self.create(path, content, mode=mode)


@pytest.fixture
def refusals(tmp_path, monkeypatch):
    return Refusals(tmp_path, monkeypatch)


def test_a_run_that_begins_does_not_wait_for_a_list_that_refuses(refusals):
    refusals.left = 1000
    assert not _claim_surely(refusals.term, None, begins=True)
    assert "Permission denied" in refusals.term.refusal.what
    assert refusals.left == 999


def test_later_in_a_run_a_refusal_is_waited_out(refusals):
    refusals.left = 3
    assert _claim_surely(refusals.term, None, begins=False)
    assert refusals.term.claimed
    assert refusals.term.refusal is None


def test_a_run_that_begins_waits_for_a_list_that_is_away(tmp_path, monkeypatch):
    refusals = Refusals(tmp_path / "list", monkeypatch)
    lifeline, end = os.pipe()
    os.close(end)
    assert not _claim_surely(refusals.term, lifeline, begins=True)
    os.close(lifeline)
    # The agent has ended; the list has refused nothing.
    assert refusals.term.refusal is None
    (tmp_path / "list").mkdir()
    assert _claim_surely(refusals.term, None, begins=True)
