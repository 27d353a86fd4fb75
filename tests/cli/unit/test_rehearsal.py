"""``elastane verify --restore`` verifies, restores in a process with torch, and compares digests."""

import json

import msgspec
import pytest

from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.nouns.checkpoints import Manifest, PartFile, format_checkpoint_name
from elastane.run.nouns.records import Digest
from elastane.run.nouns.spec import CheckpointPolicy
from elastane.run.nouns.torch_answers import RestoreRehearsal
from elastane.run.observability.run_files import read_record

# The digest of every step in the ledger of `finished_run`.
DIGEST = Digest("ab" * 32, "cd" * 32, ("ab",), ("cd",))
OTHER = msgspec.structs.replace(DIGEST, optimizer="ef" * 32)


@pytest.fixture
def saved_run(finished_run):
    """Make a run with checkpoints of steps 2, 4 and 6; its ledger has two of these steps."""
    run_dir = finished_run()
    record = read_record(run_dir)
    spec = msgspec.structs.replace(record.spec, checkpoints=CheckpointPolicy(auto=True), start=3, copies=2)
    run_dir.run.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, spec=spec)))
    catalog = Catalog(LocalStorage(run_dir.checkpoints))
    for step in (2, 4, 6):
        name = format_checkpoint_name(step)
        written = catalog.write(name, "part-0.distcp", [b"x" * 1000])
        part = PartFile(name="part-0.distcp", bytes=written.bytes, checksum=written.checksum)
        catalog.publish(Manifest(name=name, step=step, created="", parts=(part,)))
    return run_dir


@pytest.fixture
def pretend_rehearsal(tmp_path, monkeypatch):
    """Put a module in place of the rehearsing process: it records its arguments and returns a digest."""

    def install(digest=DIGEST):
        found = RestoreRehearsal(workers=3, bytes=2_000_000, seconds=0.5, digest=digest)
        notes = tmp_path / "notes"
        lines = [
            "import sys",
            f"open({str(notes)!r}, 'w').write(' '.join(sys.argv[1:]))",
            f"print({msgspec.json.encode(found).decode()!r})",
        ]
        (tmp_path / "pretend_rehearsal.py").write_text("\n".join(lines))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr("elastane.cli.runs.rehearsal.MODULE", "pretend_rehearsal")
        return notes

    return install


def test_a_restored_state_equals_the_digest_in_the_ledger(elastane, saved_run, pretend_rehearsal):
    notes = pretend_rehearsal()
    before = sorted(saved_run.root.rglob("*"))
    result = elastane("verify", "--restore", "done", "4")
    assert result.exit_code == 0
    assert "step-00000004 verified: 1.0 kB in" in result.stdout
    assert "restored on 3 workers: 2.0 MB in 0.50 s (0.00 GB/s)" in result.stdout
    assert "equal those of step 4 in the ledger" in result.stdout
    expected = f"--checkpoints {saved_run.checkpoints} --checkpoint step-00000004 --workers 3 --copies 2"
    assert notes.read_text() == expected
    assert sorted(saved_run.root.rglob("*")) == before


def test_a_restored_state_with_another_digest_is_a_failure(elastane, saved_run, pretend_rehearsal):
    pretend_rehearsal(OTHER)
    result = elastane("verify", "--restore", "done", "4", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["digest"], found["step"]) == (False, "different", 4)
    assert "the checkpoint does NOT restore the state" in result.stderr


def test_a_step_without_a_digest_in_the_ledger_is_restored_too(elastane, saved_run, pretend_rehearsal):
    notes = pretend_rehearsal(OTHER)
    result = elastane("verify", "--restore", "done", "--workers", "5")
    assert result.exit_code == 0
    assert "no digest of step 6" in result.stdout
    assert "--workers 5" in notes.read_text()


def test_a_damaged_checkpoint_is_named_and_not_restored(elastane, saved_run, pretend_rehearsal):
    notes = pretend_rehearsal()
    with (saved_run.checkpoints / format_checkpoint_name(6) / "part-0.distcp").open("r+b") as file:
        file.write(b"y")
    result = elastane("verify", "--restore", "done")
    assert result.exit_code == 1
    assert "step-00000006/part-0.distcp: its checksum is" in result.stdout
    assert not notes.exists()
    (saved_run.checkpoints / format_checkpoint_name(4) / "COMPLETE").unlink()
    assert "never finished" in elastane("verify", "--restore", "done", "4").stdout


def test_a_checkpoint_that_a_live_run_deletes_meanwhile_is_not_called_damaged(
    elastane, saved_run, pretend_rehearsal, monkeypatch
):
    pretend_rehearsal()
    verify = Catalog.verify

    def delete_first(catalog, name):
        catalog.storage.delete(f"{name}/part-0.distcp")
        damages = verify(catalog, name)
        catalog.delete(name)
        return damages

    monkeypatch.setattr(Catalog, "verify", delete_first)
    result = elastane("verify", "--restore", "done", "2")
    assert result.exit_code == 2
    assert "step-00000002 was deleted while it was read" in result.stderr


@pytest.mark.parametrize("words", [("--restore", "done", "999"), ("done", "--workers", "2")])
def test_invalid_arguments_are_refused(elastane, saved_run, words):
    assert elastane("verify", *words).exit_code == 2


def test_a_run_without_checkpoints_has_nothing_to_restore(elastane, finished_run):
    finished_run()
    result = elastane("verify", "--restore", "done")
    assert result.exit_code == 2
    assert "--checkpoint-every never" in result.stderr
