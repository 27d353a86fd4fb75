"""Storage fails at each operation of a save; a restore uses the newest complete checkpoint."""

import errno

import pytest
import torch

from elastane.common import atomic_file
from elastane.common.errors import StorageError, StorageFull
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage import hashing, local
from elastane.run.checkpoints.storage.copies import upload_files
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.checkpoints.storage.remote import RemoteStorage
from elastane.run.nouns.checkpoints import format_checkpoint_name
from elastane.run.worker.checkpoints.reader import CheckpointReader

from .faults import Crash, Fault, FaultyFileSystem, FaultyOs
from .saving import save

KINDS = ("error", "full", "short", "crash", "power")
MORE_THAN_A_SAVE = 10_000


@pytest.fixture(autouse=True)
def many_writes(monkeypatch):
    """Write every few hundred bytes, so that there are many operations to fail at."""
    monkeypatch.setattr(hashing, "BATCH_BYTES", 1500)
    monkeypatch.setattr(local, "AHEAD_BYTES", 3000)


def weights(step):
    return {"w": torch.arange(120.0) + step, "b": torch.full((3,), float(step))}


def restore_newest(catalog):
    def attempt(manifest):
        into = {key: torch.empty(facts.elements) for key, facts in manifest.tensors.items()}
        with CheckpointReader(catalog.storage, manifest) as reader:
            for key, memory in into.items():
                reader.read(key, 0, memory.numel(), memory)
        return into

    values, manifest, _ = catalog.restore_newest(attempt)
    return manifest.step, values


def assert_newest_is(catalog, step):
    found, values = restore_newest(catalog)
    assert found == step
    assert torch.equal(values["model.w"], weights(step)["w"])
    assert torch.equal(values["model.b"], weights(step)["b"])


def open_disk(root, fault, monkeypatch):
    faulty = FaultyOs(fault)
    monkeypatch.setattr(local, "os", faulty)
    monkeypatch.setattr(atomic_file, "os", faulty)  # it syncs the directories
    return Catalog(LocalStorage(root))


def open_fsspec(root, fault, monkeypatch):
    return Catalog(RemoteStorage(FaultyFileSystem(fault), str(root), "faulty://"))


def try_to_save(catalog, step):
    """Save; return whether it was saved or refused, or the process crashed."""
    try:
        save(catalog, step, weights(step), writers=2)
    except StorageError:
        return "refused"
    except Crash:
        return "crashed"
    return "saved"


@pytest.mark.parametrize(
    ("kind", "storage"),
    [
        # By turns; the other combinations are long.
        pytest.param(kind, storage, marks=() if turn % 2 == place else pytest.mark.long)
        for turn, kind in enumerate(KINDS)
        for place, storage in enumerate((open_disk, open_fsspec))
    ],
)
def test_a_restore_uses_the_newest_complete_checkpoint_after_any_failure(
    storage, kind, tmp_path, monkeypatch
):
    save(Catalog(LocalStorage(tmp_path / "counted")), 1, weights(1), writers=2)
    with monkeypatch.context() as patch:
        counting = Fault(kind, MORE_THAN_A_SAVE)
        assert try_to_save(storage(tmp_path / "counted", counting, patch), 2) == "saved"
    operations = counting.count
    assert operations > 25
    ends = set()
    for at in range(operations):
        root = tmp_path / str(at)
        healthy = Catalog(LocalStorage(root))
        save(healthy, 1, weights(1), writers=2)
        with monkeypatch.context() as patch:
            fault = Fault(kind, at)
            end = try_to_save(storage(root, fault, patch), 2)
            assert fault.fired
        ends.add(end)
        state = healthy.inspect(format_checkpoint_name(2)).summary.state
        assert_newest_is(healthy, 2 if state == "complete" else 1)
        if end == "saved":
            assert state == "complete"
            assert healthy.verify(format_checkpoint_name(2)) == ()
        # With any leftovers the same checkpoint can be written again, and others after it.
        save(healthy, 2, weights(2), writers=2)
        assert_newest_is(healthy, 2)
        assert healthy.verify(format_checkpoint_name(2)) == ()
    if kind in ("crash", "power"):
        assert ends == {"crashed"}
    else:
        # A reported short write is continued, and a publisher need not know an earlier one.
        assert "refused" in ends or (kind == "short" and storage is open_disk)
        assert ends <= {"saved", "refused"}


@pytest.mark.parametrize("storage", [open_disk, open_fsspec])
def test_a_full_disk_has_its_own_error(storage, tmp_path, monkeypatch):
    catalog = storage(tmp_path, Fault("full", 6), monkeypatch)
    with pytest.raises(StorageFull, match="No space left"):
        save(catalog, 2, weights(2))


@pytest.mark.parametrize("at", range(3))
def test_a_failed_write_leaves_no_file(at, tmp_path, monkeypatch):
    """A worker that tries again after others have published deletes its own leftovers: no one else will."""
    (tmp_path / "step").mkdir()
    fault = Fault("error", at)
    monkeypatch.setattr(local, "os", FaultyOs(fault))
    with pytest.raises(StorageError):
        LocalStorage(tmp_path).write("step/part-0.distcp", [b"x" * 2000] * 2)
    assert fault.fired
    assert list((tmp_path / "step").iterdir()) == []


def test_a_failed_write_leaves_the_file_that_has_taken_its_place(tmp_path):
    path = tmp_path / "part"

    def replace_and_fail():
        yield b"x"
        path.unlink()
        path.write_text("of another writer")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageFull):
        LocalStorage(tmp_path).write("part", replace_and_fail())
    assert path.read_text() == "of another writer"


def test_an_error_of_a_client_library_becomes_a_storage_error(tmp_path, monkeypatch):
    class ClientError(Exception):
        pass

    filesystem = FaultyFileSystem(Fault("error", MORE_THAN_A_SAVE))
    monkeypatch.setattr(
        filesystem, "cat_file", lambda *a, **k: (_ for _ in ()).throw(ClientError("no token"))
    )
    with pytest.raises(StorageError, match="ClientError: no token"):
        RemoteStorage(filesystem, str(tmp_path), "faulty://").read("x")


def test_a_published_checkpoint_survives_a_power_cut(tmp_path, monkeypatch):
    fault = Fault("power", MORE_THAN_A_SAVE)
    assert try_to_save(open_disk(tmp_path / "deep" / "run", fault, monkeypatch), 2) == "saved"
    fault.on_power_cut()
    monkeypatch.undo()
    healthy = Catalog(LocalStorage(tmp_path / "deep" / "run"))
    assert healthy.verify(format_checkpoint_name(2)) == ()
    assert_newest_is(healthy, 2)


@pytest.mark.parametrize("kind", ["error", "full", "short"])
def test_an_upload_of_files_is_whole_or_leaves_nothing(tmp_path, kind):
    source = LocalStorage(tmp_path / "export")
    source.write("shards/0", [bytes(4000)])
    source.write("config.json", [b"{}"])
    for at in range(MORE_THAN_A_SAVE):
        fault, root = Fault(kind, at), tmp_path / f"store-{at}"
        store = RemoteStorage(FaultyFileSystem(fault), str(root), "faulty://store")
        try:
            upload_files(source, ["shards/0", "config.json"], store)
        except StorageError:
            assert not [path for path in root.rglob("*") if path.is_file()]
        else:
            assert ((root / "shards/0").stat().st_size, (root / "config.json").read_bytes()) == (4000, b"{}")
        if not fault.fired:
            return
    pytest.fail("the upload never ended")
