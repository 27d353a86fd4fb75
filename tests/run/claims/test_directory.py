"""A claim list in a directory: killed claimants, NFS, odd entries, and places that are none."""

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from elastane.common import atomic_file
from elastane.common.atomic_file import find_partials
from elastane.run.machines.claims import directory
from elastane.run.machines.claims.claim_list import ClaimList
from elastane.run.machines.claims.directory import DirectoryPlace
from elastane.run.machines.claims.place import ClaimsUnavailable, ClaimsUnusable
from elastane.run.machines.claims.records import LARGEST_RECORD_BYTES, HeldSlot, Unreadable
from elastane.run.machines.claims.urls import open_claim_list

KILLED_AT = """
import os, signal, sys
from elastane.common import atomic_file
from elastane.run.machines.claims.directory import DirectoryPlace

at, moment, count = int(sys.argv[2]), sys.argv[3], 0


class KilledOs:
    def __getattr__(self, name):
        found = getattr(os, name)
        if name not in ("open", "fsync", "link", "fdopen"):
            return found

        def call(*args, **kwargs):
            global count
            number, count = count, count + 1
            if number == at and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = found(*args, **kwargs)
            if number == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call


atomic_file.os = KilledOs()
print(DirectoryPlace(sys.argv[1]).create(1, b"x" * 500), count)
"""


def run_killed(path, at, moment):
    command = [sys.executable, "-c", KILLED_AT, str(path), str(at), moment]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_claimant_that_is_killed_at_any_system_call_leaves_a_whole_claim_or_none(tmp_path, term):
    path = tmp_path / "counted"
    path.mkdir()
    created, calls = run_killed(path, -1, "before").stdout.split()
    assert created == "True"
    assert int(calls) >= 5
    ends = []
    for at in range(int(calls)):
        for moment in ("before", "after"):
            path = tmp_path / f"{at}-{moment}"
            path.mkdir()
            assert run_killed(path, at, moment).returncode == -signal.SIGKILL
            contents = DirectoryPlace(path).read(1)
            assert contents in ((), (b"x" * 500,))
            ends.append(len(contents))
            listed = open_claim_list(str(path))
            found = listed.claim(1, record := term())
            assert found.holds(record) is not contents
            assert listed.claim(2, second := term(2)).holds(second)
            # Later claims remove the temporary file of the dead one.
            assert not list(find_partials(path))
            assert sorted(entry.name for entry in path.iterdir()) == ["1", "2"]
    assert ends == sorted(ends)
    assert set(ends) == {0, 1}


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "list"
    made.mkdir()
    return made


@pytest.mark.parametrize("errno_name", ["EEXIST", "EIO", "ESTALE", "ETIMEDOUT"])
def test_a_link_whose_reply_was_lost_is_the_claimants_own(path, term, monkeypatch, errno_name):
    code, links = getattr(errno, errno_name), []

    def link(partial, target, **kwargs):
        links.append(target)
        os.link(partial, target, **kwargs)
        raise OSError(code, os.strerror(code), str(partial), None, str(target))

    monkeypatch.setattr(atomic_file, "os", _Patched(link=link))
    record = term()
    assert open_claim_list(str(path)).claim(1, record).holds(record)
    assert len(links) == 1
    monkeypatch.undo()
    assert open_claim_list(str(path)).read() == (HeldSlot(1, record),)


def test_a_name_that_the_disk_has_not_confirmed_is_synced_before_it_is_shown(path, term, monkeypatch):
    failures, synced = [1], []

    def sync(found):
        if failures:
            failures.pop()
            raise OSError(5, "Input/output error")
        synced.append(found)

    monkeypatch.setattr(directory, "sync_directory", sync)
    record = term()
    assert open_claim_list(str(path)).claim(1, record).holds(record)
    assert synced == [path]


class _Patched:
    def __init__(self, **functions):
        self._functions = functions

    def __getattr__(self, name):
        return self._functions.get(name) or getattr(os, name)


@pytest.mark.parametrize("code", [1, 95, 38])
def test_a_file_system_without_hard_links_is_refused(path, term, monkeypatch, code):
    def link(partial, target, **kwargs):
        raise OSError(code, os.strerror(code), str(partial), None, str(target))

    monkeypatch.setattr(atomic_file, "os", _Patched(link=link))
    listed = open_claim_list(str(path))
    for refused in (listed.prove_writable, lambda: listed.claim(1, term())):
        with pytest.raises(ClaimsUnusable, match="hard links"):
            refused()
    assert not list(path.iterdir())


def test_a_file_system_whose_links_replace_files_is_refused(path, monkeypatch):
    def link(partial, target, **kwargs):
        partial.replace(target)

    monkeypatch.setattr(atomic_file, "os", _Patched(link=link))
    with pytest.raises(ClaimsUnusable, match="two claimants could both get a slot"):
        open_claim_list(str(path)).prove_writable()
    assert not list(path.iterdir())


def test_places_that_are_no_list_are_refused_in_words(tmp_path, term):
    (tmp_path / "file").write_text("")
    with pytest.raises(ClaimsUnusable, match="not a directory"):
        open_claim_list(str(tmp_path / "file")).claim(1, term())
    with pytest.raises(ClaimsUnavailable, match="does not exist"):
        open_claim_list(str(tmp_path / "absent"), wait_s=2.0).claim(1, term())
    assert not (tmp_path / "absent").exists()
    with pytest.raises(ClaimsUnusable, match="sftp://"):
        open_claim_list("sftp://host/list")


@pytest.mark.parametrize("code", [13, 30])
def test_a_directory_without_permission_is_refused_in_words(path, term, monkeypatch, code):
    def refuse(name, flags, *args, **kwargs):
        if flags & os.O_CREAT:
            raise OSError(code, os.strerror(code), str(name))
        return os.open(name, flags, *args, **kwargs)

    monkeypatch.setattr(atomic_file, "os", _Patched(open=refuse))
    with pytest.raises(ClaimsUnusable, match=os.strerror(code)) as caught:
        open_claim_list(str(path)).claim(1, term())
    assert str(path) in caught.value.do


def test_a_full_disk_says_so(path, term, monkeypatch):
    def refuse(descriptor):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(atomic_file, "os", _Patched(fsync=refuse))
    with pytest.raises(ClaimsUnavailable, match="No space left") as caught:
        open_claim_list(str(path), wait_s=2.0).claim(1, term())
    assert "free some space" in caught.value.do
    assert not list(path.iterdir())


def make_pipe(path):
    os.mkfifo(path)


def make_link(path):
    path.with_name("elsewhere").write_text("{}")
    path.symlink_to(path.with_name("elsewhere"))


def make_large(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (make_pipe, "regular"),
        (make_link, "regular"),
        (os.mkdir, "regular"),
        (make_large, f"{LARGEST_RECORD_BYTES} bytes"),
    ],
)
def test_an_odd_entry_holds_its_slot(path, term, make, word):
    make(path / "1")
    listed = open_claim_list(str(path))
    found = listed.claim(1, term())
    assert isinstance(found.record, Unreadable)
    assert word in found.record.why
    assert listed.claim(2, record := term()).holds(record)
    assert listed.read() == (found, HeldSlot(2, record))


def test_an_unreadable_file_costs_only_its_slot(path, term, monkeypatch):
    listed = open_claim_list(str(path))
    listed.claim(1, term())
    listed.claim(2, record := term(2))

    def refuse(name, flags, *args, **kwargs):
        if name == "1":
            raise PermissionError(13, "Permission denied")
        return os.open(name, flags, *args, **kwargs)

    monkeypatch.setattr(directory, "os", _Patched(open=refuse))
    first, second = listed.read()
    assert isinstance(first.record, Unreadable)
    assert second.record == record


def test_a_file_system_that_hangs_costs_no_more_than_the_stated_time(path, term, monkeypatch):
    back = threading.Event()
    place = DirectoryPlace(path)
    create = place.create

    def hang(slot, content):
        back.wait()
        return create(slot, content)

    monkeypatch.setattr(place, "create", hang)
    listed = ClaimList(place, wait_s=2.0)
    with pytest.raises(ClaimsUnavailable, match=r"not answered within 2 s.*\n.*slot 1 is unknown"):
        listed.claim(1, record := term())
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(ClaimsUnavailable, match="not answered"):
            listed.read()
    # The calls that were not made have left no threads.
    assert threading.active_count() == before
    back.set()
    assert ClaimList(DirectoryPlace(path)).claim(1, record).holds(record)
    assert [one.record for one in listed.read()] == [record]
