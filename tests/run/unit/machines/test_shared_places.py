"""A machine that does not share the directories of a run is refused, whichever of them it lacks."""

import os

import pytest

from elastane.common.errors import BadInput
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.urls import open_storage
from elastane.run.connections.endpoint import read_endpoint
from elastane.run.machines.claims.urls import open_claim_list
from elastane.run.machines.tickets import shared_places
from elastane.run.machines.tickets.shared_places import UNSEEN_S, find_local_directory, leave_marks
from elastane.run.machines.tickets.ticket_files import find_tickets, list_tickets
from elastane.run.machines.visits.visits import check_shared_places, find_shared_run
from elastane.run.nouns.rundir import RunDir
from tests.run.unit.machines.test_mirror import SECRET, Machine


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of a run with its checkpoints and its claim list outside the run directory."""
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("elastane.run.machines.visits.visits.SEEN_S", 0.2)
    made = Machine(tmp_path / "elsewhere" / "demo")
    # The first checkpoint would make its directory; that of the claims is there from the start.
    made.places = {"checkpoints": tmp_path / "ck" / "demo", "claims": tmp_path / "claims"}
    (tmp_path / "claims").mkdir()
    with made.serve():
        yield made
    made.listening.close()


def check(machine: Machine) -> None:
    check_shared_places(machine.run_dir, machine.nodes, read_endpoint(machine.run_dir), SECRET)


def list_marks(machine: Machine) -> list:
    directories = [find_tickets(machine.run_dir), *machine.places.values()]
    return [path for directory in directories for path in directory.glob("mark-*")]


@pytest.mark.parametrize("by_ticket", [True, False])
def test_a_machine_that_shares_all_takes_part_and_leaves_no_mark(machine, by_ticket) -> None:
    if by_ticket:
        assert find_shared_run(machine.write_ticket()) == (machine.run_dir, ())
    else:
        check(machine)
    assert machine.places["checkpoints"].is_dir()
    assert list_marks(machine) == []


@pytest.mark.parametrize("by_ticket", [True, False])
@pytest.mark.parametrize(
    ("place", "words", "means"),
    [
        ("checkpoints", "the directory of the checkpoints", "no checkpoint would be complete"),
        ("claims", "the claim list", "could not take charge"),
    ],
)
def test_a_place_that_is_not_shared_is_named(machine, monkeypatch, *, by_ticket, place, words, means) -> None:
    lacking = machine.places[place]
    sees = shared_places._is_listed
    monkeypatch.setattr(shared_places, "_is_listed", lambda path, name: path != lacking and sees(path, name))
    with pytest.raises(BadInput) as refusal:
        find_shared_run(machine.write_ticket()) if by_ticket else check(machine)
    assert refusal.value.what == f"this machine does not share {words} of the run: {lacking}"
    assert means in refusal.value.means
    assert "mount its file system at the same path" in refusal.value.do


def test_a_copy_of_the_run_directory_is_refused_without_a_ticket(machine, tmp_path) -> None:
    copy = tmp_path / "copy"
    (copy / "tickets").mkdir(parents=True)
    endpoint = read_endpoint(machine.run_dir)
    with pytest.raises(BadInput, match="does not share the directory of the run") as refusal:
        check_shared_places(RunDir(copy), machine.nodes, endpoint, SECRET)
    assert str(copy) in refusal.value.what


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written_is_refused(machine, monkeypatch) -> None:
    directory = machine.places["claims"]
    sees = shared_places._is_listed

    def lock_when_seen(path, name):
        seen = sees(path, name)
        if path == directory:
            directory.chmod(0o500)
        return seen

    monkeypatch.setattr(shared_places, "_is_listed", lock_when_seen)
    try:
        with pytest.raises(BadInput, match="cannot write the claim list of the run"):
            check(machine)
    finally:
        directory.chmod(0o700)


def test_nobody_is_refused_for_a_place_that_is_away_for_all(machine) -> None:
    machine.places["claims"].rmdir()
    check(machine)


def test_no_listing_takes_a_mark_for_one_of_theirs(machine) -> None:
    checkpoints, claims = machine.places["checkpoints"], machine.places["claims"]
    marks = leave_marks({"run": find_tickets(machine.run_dir), **machine.places})
    assert {mark.place for mark in marks} == {"run", "checkpoints", "claims"}
    assert Catalog(open_storage(str(checkpoints))).list_names() == []
    assert open_claim_list(str(claims)).read() == ()
    assert list_tickets(machine.run_dir) == ()
    assert len(list_marks(machine)) == 3


def test_a_mark_that_no_machine_saw_is_removed_later(machine) -> None:
    leave_marks(machine.places)
    (old,) = machine.places["claims"].glob("mark-*")
    other = machine.places["claims"] / "mark-of-a-user"
    other.touch()
    for path in (old, other):
        os.utime(path, (0, old.stat().st_mtime - 2 * UNSEEN_S))
    leave_marks(machine.places)
    assert not old.exists()
    assert other.exists()


def test_only_paths_are_directories() -> None:
    assert str(find_local_directory("/a/b")) == "/a/b"
    assert str(find_local_directory("file:///a/b")) == "/a/b"
    assert find_local_directory("s3://bucket/a") is None
