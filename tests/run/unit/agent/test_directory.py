"""A run directory is recognised by its identity on the disk, not by its name."""

from pathlib import Path

import pytest

from elastane.run.agent.directory_guard import DirectoryGuard
from elastane.run.nouns.rundir import RunDir


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    files = RunDir(tmp_path / "run")
    files.logs.mkdir(parents=True)
    for path in (files.lock, files.ledger, files.events):
        path.touch()
    return files


@pytest.fixture
def guard(run_dir):
    guard = DirectoryGuard(run_dir)
    yield guard
    guard.close()


def remove(directory: Path) -> None:
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    directory.rmdir()


def test_a_directory_in_normal_use_counts_as_unchanged(run_dir, guard):
    run_dir.model_files.weights.write_bytes(b"weights")
    run_dir.ledger.write_bytes(b"{}\n")
    run_dir.model_files.weights.unlink()
    assert guard.check() is None


def test_a_removed_directory_is_noticed(run_dir, guard):
    remove(run_dir.root)
    lost = guard.check()
    assert "removed" in lost.what
    assert str(run_dir.root) in lost.what
    assert lost.means
    assert lost.do
    assert lost.moved_to is None


def test_the_new_place_of_a_moved_directory_is_named(run_dir, guard, tmp_path):
    run_dir.root.rename(tmp_path / "elsewhere")
    lost = guard.check()
    assert lost.moved_to == tmp_path / "elsewhere"
    assert f"--resume {tmp_path / 'elsewhere'}" in lost.do


def test_the_new_place_is_named_if_the_parent_was_moved(run_dir, tmp_path):
    parent = tmp_path / "parent"
    parent.mkdir()
    run_dir.root.rename(parent / "run")
    guard = DirectoryGuard(RunDir(parent / "run"))
    parent.rename(tmp_path / "another")
    assert guard.check().moved_to == tmp_path / "another" / "run"
    guard.close()


@pytest.mark.parametrize("moved", [True, False])
def test_another_directory_in_its_place_is_noticed(run_dir, guard, tmp_path, moved):
    if moved:
        run_dir.root.rename(tmp_path / "elsewhere")
    else:
        remove(run_dir.root)
    run_dir.root.mkdir()
    lost = guard.check()
    assert "another directory is in its place" in lost.what
    assert (lost.moved_to is not None) == moved


@pytest.mark.parametrize("name", ["lock", "ledger.jsonl", "events.jsonl"])
@pytest.mark.parametrize("replaced", [True, False])
def test_a_removed_or_replaced_file_is_noticed(run_dir, guard, name, replaced):
    path = run_dir.root / name
    kept = path.open("rb")  # keep it open as the run does, so that its inode is not reused
    path.unlink()
    if replaced:
        path.touch()
    lost = guard.check()
    kept.close()
    assert str(path) in lost.what
    assert ("replaced" if replaced else "removed") in lost.what


def test_a_file_that_is_made_later_is_watched_from_then_on(run_dir, guard):
    run_dir.events.unlink()
    fresh = DirectoryGuard(run_dir)
    assert fresh.check() is None
    run_dir.events.touch()
    assert fresh.check() is None
    run_dir.events.unlink()
    assert "events.jsonl" in fresh.check().what
    fresh.close()


def test_a_run_behind_a_link_is_watched_at_its_real_place(run_dir, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(run_dir.root)
    guard = DirectoryGuard(RunDir(link))
    assert guard.check() is None
    link.unlink()
    assert guard.check().moved_to == run_dir.root
    guard.close()
