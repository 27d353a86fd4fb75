"""Any damage to a checkpoint is found and named, and a restore uses the newest intact checkpoint."""

import hashlib
import random
import shutil
from pathlib import Path

import msgspec
import pytest
import torch

from elastane.common.errors import Damaged, NoSuchFile
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.nouns.checkpoints import (
    MANIFEST,
    MARKER,
    CheckpointMarker,
    Retention,
    format_checkpoint_name,
)
from elastane.run.worker.checkpoints.reader import CheckpointReader, ReadRequest

from .saving import save


@pytest.fixture
def catalog(tmp_path):
    return Catalog(LocalStorage(tmp_path / "checkpoints"))


@pytest.fixture
def three(catalog):
    for step in (1, 2, 3):
        save(catalog, step, {"w": torch.arange(200.0) * step}, metrics={"loss": abs(step - 2.0)})
    return catalog


def find_directory(catalog, step):
    return Path(catalog.storage.url) / format_checkpoint_name(step)


def restore(catalog):
    def attempt(manifest):
        into = torch.empty(200)
        with CheckpointReader(catalog.storage, manifest) as reader:
            reader.read_many([ReadRequest("model.w", 0, 200, into)])
        return into

    return catalog.restore_newest(attempt)


def list_files(catalog, step):
    return sorted(path for path in find_directory(catalog, step).iterdir())


def flip_bit(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_a_flipped_bit_in_any_file_is_found(three):
    assert three.verify(format_checkpoint_name(3)) == ()
    seeded = random.Random(7)
    for path in list_files(three, 3):
        whole = path.read_bytes()
        every_bit = range(8 * len(whole))
        for bit in seeded.sample(every_bit, min(60, len(every_bit))):
            flip_bit(path, bit)
            damages = three.verify(format_checkpoint_name(3))
            # Only an invalid marker can be distinguished from a damaged manifest.
            blamed = {MANIFEST, MARKER} if path.name == MARKER else {path.name}
            assert {damage.file for damage in damages} <= blamed, (path, bit)
            assert damages, (path, bit)
            path.write_bytes(whole)


def test_every_flipped_bit_of_the_marker_is_found(three):
    marker = find_directory(three, 3) / MARKER
    whole = marker.read_bytes()
    for bit in range(8 * len(whole)):
        flip_bit(marker, bit)
        assert three.inspect(format_checkpoint_name(3)).summary.state == "damaged", bit
        marker.write_bytes(whole)


def test_a_truncated_or_missing_file_is_noticed_without_reading_data(three):
    for path in list_files(three, 3):
        whole = path.read_bytes()
        for length in (0, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            assert three.inspect(format_checkpoint_name(3)).summary.state == "damaged", (path, length)
            assert three.verify(format_checkpoint_name(3))
        path.unlink()
        wanted = "unfinished" if path.name == MARKER else "damaged"
        assert three.inspect(format_checkpoint_name(3)).summary.state == wanted
        path.write_bytes(whole)
    assert three.inspect(format_checkpoint_name(3)).summary.state == "complete"


def test_a_restore_uses_the_newest_intact_checkpoint_and_names_the_damaged_ones(three):
    part = next(part for part in three.load_manifest(format_checkpoint_name(3)).parts if part.items)
    flip_bit(find_directory(three, 3) / part.name, 8 * part.items[0].raw_offset + 11)
    (find_directory(three, 2) / MANIFEST).write_bytes(b"{")
    values, manifest, passed = restore(three)
    assert manifest.step == 1
    assert torch.equal(values, torch.arange(200.0))
    assert [error.checkpoint for error in passed] == [format_checkpoint_name(3), format_checkpoint_name(2)]
    assert part.name in str(passed[0])
    assert MANIFEST in str(passed[1])


def test_a_restore_without_an_intact_checkpoint_fails(three):
    for step in (1, 2, 3):
        (find_directory(three, step) / MANIFEST).write_bytes(b"{}")
    with pytest.raises(Damaged, match="none of the 3 checkpoints") as caught:
        restore(three)
    assert caught.value.checkpoint == format_checkpoint_name(3)


def test_a_restore_without_a_checkpoint_fails(catalog):
    with pytest.raises(NoSuchFile, match="holds no finished checkpoint"):
        restore(catalog)
    find_directory(catalog, 5).mkdir(parents=True)
    with pytest.raises(NoSuchFile, match="unfinished checkpoints: 1"):
        restore(catalog)


def test_a_checkpoint_of_a_later_schema_is_skipped_and_never_deleted(three):
    path = find_directory(three, 2)
    manifest = msgspec.json.decode((path / MANIFEST).read_bytes())
    three.storage.delete(f"{format_checkpoint_name(2)}/{MARKER}")
    text = msgspec.json.encode(manifest | {"schema": 99})
    marker = CheckpointMarker(len(text), hashlib.sha256(text).hexdigest())
    three.write(format_checkpoint_name(2), MANIFEST, [text])
    three.write(format_checkpoint_name(2), MARKER, [msgspec.json.encode(marker)])
    assert three.inspect(format_checkpoint_name(2)).summary.state == "foreign"
    assert [deletion.name for deletion in three.prune(Retention(last=1))] == [format_checkpoint_name(1)]
    assert three.list_names() == [format_checkpoint_name(2), format_checkpoint_name(3)]


def test_pruning_deletes_checkpoints_that_no_rule_retains(three):
    save(three, 4, {"w": torch.arange(200.0) * 4}, metrics={"loss": 9.0})
    rules = Retention(last=1, best=("loss", "min"))
    assert [d.name for d in three.plan_pruning(rules)] == [
        format_checkpoint_name(1),
        format_checkpoint_name(3),
    ]
    three.prune(rules)
    assert three.list_names() == [format_checkpoint_name(2), format_checkpoint_name(4)]


def test_pruning_verifies_the_newest_checkpoint_and_retains_the_one_before_a_damaged_one(three):
    part = next(part for part in three.load_manifest(format_checkpoint_name(3)).parts if part.items)
    flip_bit(find_directory(three, 3) / part.name, 8 * part.items[0].raw_offset)
    assert three.inspect(format_checkpoint_name(3)).summary.state == "complete"
    assert [d.name for d in three.prune(Retention(last=1))] == [format_checkpoint_name(1)]
    assert restore(three)[1].step == 2


def test_an_interrupted_deletion_leaves_an_unfinished_checkpoint_for_the_next_pruning(three, monkeypatch):
    def die(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            three.prune(Retention(last=2))
    assert three.inspect(format_checkpoint_name(1)).summary.state == "unfinished"
    assert [d.name for d in three.prune(Retention(last=2))] == [format_checkpoint_name(1)]
    assert three.list_names() == [format_checkpoint_name(2), format_checkpoint_name(3)]


def test_pruning_does_not_delete_a_checkpoint_that_is_being_written(three):
    three.write(format_checkpoint_name(4), "part-0.distcp", [b"half"])
    three.prune(Retention(last=1))
    assert three.list_names() == [format_checkpoint_name(3), format_checkpoint_name(4)]
