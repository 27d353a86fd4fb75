"""A run directory belongs to one run, and is found by the name of the run."""

import fcntl
import os
from pathlib import Path

import msgspec
import pytest

from elastane.cli.run_lookup import list_runs
from elastane.common.errors import BadInput
from elastane.run.attempts import run_directory
from elastane.run.attempts.run_directory import check_name_is_free, claim_run_directory, reclaim_run_directory
from elastane.run.connections.run_lock import is_live
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord, RunSpec

SPEC = RunSpec(name="trial", script="train.py")


def test_a_claimed_directory_has_all_files_of_a_run_and_is_live(home) -> None:
    with claim_run_directory(SPEC, None) as run_dir:
        assert run_dir.root == home / "runs" / "trial"
        assert msgspec.json.decode(run_dir.run.read_bytes(), type=RunRecord).spec == SPEC
        assert run_dir.secret.stat().st_mode & 0o777 == 0o600
        assert len(bytes.fromhex(run_dir.secret.read_text())) == 32
        assert run_dir.logs.is_dir()
        assert is_live(run_dir)
    assert not is_live(run_dir)


def test_each_run_has_its_own_secret(home, tmp_path) -> None:
    secrets = set()
    for name in "ab":
        spec = msgspec.structs.replace(SPEC, name=name)
        with claim_run_directory(spec, None) as run_dir:
            secrets.add(run_dir.secret.read_text())
    assert len(secrets) == 2


def test_a_run_in_another_directory_is_found_by_its_name(home, tmp_path) -> None:
    with claim_run_directory(SPEC, tmp_path / "elsewhere") as run_dir:
        assert run_dir.root == tmp_path / "elsewhere"
    assert list_runs() == [RunDir(tmp_path / "elsewhere")]


def test_a_name_whose_run_was_removed_is_free_again(home, tmp_path) -> None:
    (home / "runs").mkdir(parents=True)
    (home / "runs" / "trial").symlink_to(tmp_path / "removed")
    with claim_run_directory(SPEC, tmp_path / "new"):
        assert (home / "runs" / "trial").resolve() == tmp_path / "new"


def test_the_name_of_another_run_is_taken(home, tmp_path) -> None:
    with claim_run_directory(SPEC, None):
        pass
    with pytest.raises(BadInput, match="belongs to the run"):
        check_name_is_free("trial", tmp_path / "other")


def test_another_run_is_never_overwritten(home) -> None:
    with claim_run_directory(SPEC, None) as run_dir:
        before = run_dir.run.read_bytes()
    with pytest.raises(BadInput, match="already holds a run"), claim_run_directory(SPEC, None):
        pass
    assert run_dir.run.read_bytes() == before


def test_a_directory_in_use_is_refused(home, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(run_directory, "LOCK_CHECK_S", 0.0)
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BadInput, match="is in use"), claim_run_directory(SPEC, tmp_path):
            pass


def test_a_directory_that_cannot_be_made_is_refused(home, script) -> None:
    with pytest.raises(BadInput, match="Not a directory"), claim_run_directory(SPEC, script / "below"):
        pass


def test_a_full_disk_is_reported_and_leaves_no_partial_run(home, tmp_path, monkeypatch) -> None:
    def fail_with_full_disk(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail_with_full_disk)
    with pytest.raises(BadInput, match="No space left"), claim_run_directory(SPEC, tmp_path / "full"):
        pass
    assert not RunDir(tmp_path / "full").run.exists()
    assert not list((tmp_path / "full").glob("*.partial"))


@pytest.mark.parametrize(
    "url", ["s3://bucket/demo", "gs://bucket", "hf://datasets/us/demo", "file:///tmp/demo"]
)
def test_the_url_of_a_store_is_refused_as_a_run_directory(home, tmp_path, monkeypatch, url) -> None:
    """A path would make the local folder ``s3:``."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as refused, claim_run_directory(SPEC, Path(url)):
        pass
    assert f"--run-dir is the URL {url.replace('///', '//')}" in str(refused.value)
    assert ("write the path: /tmp/demo" if url.startswith("file:") else "--checkpoint-dir URL") in str(
        refused.value
    )
    assert list(tmp_path.iterdir()) == []


def test_the_url_of_a_store_is_refused_as_a_home(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELASTANE_HOME", "s3://bucket/home")
    with (
        pytest.raises(BadInput, match="ELASTANE_HOME is the URL s3://bucket/home"),
        claim_run_directory(SPEC, None),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["s3:", "a:b/c", "runs/s3:"])
def test_a_local_directory_may_contain_colons(home, tmp_path, monkeypatch, name) -> None:
    monkeypatch.chdir(tmp_path)
    with claim_run_directory(SPEC, Path(name)) as run_dir:
        assert run_dir.root == tmp_path / name


LINKS = ("lock", "events.jsonl", "ledger.lost.jsonl", "checkpoints", "artifacts/step-1", "logs/worker-0.log")


@pytest.mark.parametrize("place", LINKS)
def test_a_run_writes_through_no_link(home, tmp_path, place) -> None:
    with claim_run_directory(SPEC, None) as run_dir:
        pass
    path = run_dir.root / place
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "private")
    with pytest.raises(BadInput, match="is a symbolic link"), reclaim_run_directory(run_dir):
        pass
    run_dir.run.unlink()
    with pytest.raises(BadInput, match="is a symbolic link"), claim_run_directory(SPEC, run_dir.root):
        pass
    assert not (tmp_path / "private").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_run_of_another_user_is_not_resumed(home) -> None:
    with claim_run_directory(SPEC, None) as run_dir:
        pass
    with reclaim_run_directory(run_dir):
        pass
    os.chown(run_dir.run, 1234, 1234)
    with pytest.raises(BadInput, match="another user, with the id 1234"), reclaim_run_directory(run_dir):
        pass
