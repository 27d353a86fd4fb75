"""After an interruption, a reader that looks for the marker sees a complete set of files or none."""

import os
from pathlib import Path

import pytest

from elastane.run.worker.finished.file_set import replace_file_set

MARKER = "index"
OLD = {"one": b"old 1", "two": b"old 2", "three": b"old 3", MARKER: b"old"}
NEW = {"one": b"new 1", "two": b"new 2", MARKER: b"new"}


class InterruptedWrite(OSError):
    """The disk is full, or the process was killed here."""


def write_set(folder, files):
    def writer(text):
        return lambda file: file.write(text)

    replace_file_set(
        folder, {name: writer(text) for name, text in files.items()}, marker=MARKER, replaced=["three"]
    )


def read_set(folder):
    """Return the files that a reader sees; None: there is no marker."""
    if not (folder / MARKER).exists():
        return None
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


@pytest.fixture
def breaks_at(monkeypatch):
    """Fail at the n-th call that changes the disk; return the calls so far."""

    def arm(at):
        calls = []

        def count(name, inner):
            def call(*args, **kwargs):
                calls.append(name)
                if len(calls) == at:
                    raise InterruptedWrite(name)
                return inner(*args, **kwargs)

            return call

        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink")):
            monkeypatch.setattr(owner, name, count(name, getattr(owner, name)))
        return calls

    return arm


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("before", [{}, OLD], ids=["none", "old"])
def test_an_interruption_at_any_change_shows_a_complete_set_or_none(
    tmp_path, breaks_at, monkeypatch, before, at
):
    for name, text in before.items():
        (tmp_path / name).write_bytes(text)
    calls = breaks_at(at)
    try:
        write_set(tmp_path, NEW)
    except InterruptedWrite:
        flushing = calls[at - 1] == "fsync" and "replace" not in calls
        assert read_set(tmp_path) in ([before or None] if flushing else [before or None, None, NEW])
    monkeypatch.undo()
    write_set(tmp_path, NEW)
    assert read_set(tmp_path) == NEW
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("broken", NEW)
def test_a_file_that_cannot_be_written_leaves_the_old_set(tmp_path, broken):
    write_set(tmp_path, OLD)
    (tmp_path / f".{broken}.partial").mkdir()
    with pytest.raises(OSError, match=broken):
        write_set(tmp_path, NEW)
    assert read_set(tmp_path) == OLD


def test_a_single_changed_file_is_replaced_by_one_move(tmp_path, breaks_at):
    write_set(tmp_path, NEW)
    calls = breaks_at(0)
    write_set(tmp_path, NEW | {MARKER: b"newer"})
    assert calls.count("replace") == 1
    assert calls.index("replace") < calls.index("unlink")


def test_files_with_the_same_bytes_stay_untouched(tmp_path, breaks_at):
    write_set(tmp_path, NEW)
    calls = breaks_at(0)
    write_set(tmp_path, NEW)
    assert "replace" not in calls
