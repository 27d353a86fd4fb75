"""When a worker cannot write its part of a checkpoint, another worker with the same state writes it."""

import pytest

from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.nouns.spec import CheckpointPolicy

pytestmark = pytest.mark.processes


def play(stage, worker, *, policy, **options):
    return stage.play(
        "no room",
        worker,
        script="exhausted.py",
        checkpoints=policy,
        **{"start": 2, "max_workers": 3} | options,
    )


def find_parts(ended):
    """Verify all checkpoints and return the names of their parts, by step."""
    catalog = Catalog(LocalStorage(ended.run.run_dir.checkpoints))
    found = {}
    for name in catalog.list_names():
        assert catalog.verify(name) == (), (name, ended.describe())
        found[catalog.load_manifest(name).step] = {part.name for part in catalog.load_manifest(name).parts}
    return found


@pytest.mark.parametrize(("workers", "copies"), [(2, None), (2, 2), (3, 2)])
def test_the_last_checkpoint_is_complete_without_a_worker_that_cannot_write(stage, workers, copies):
    ended = play(stage, "0", policy=CheckpointPolicy(), start=workers, copies=copies)
    assert ended.outcome.code == 0, ended.describe()
    parts = find_parts(ended)[9]
    assert "part-0.distcp" not in parts, ended.describe()
    files = {path.name for path in (ended.run.run_dir.checkpoints / "step-00000009").iterdir()}
    assert "part-0.distcp" not in files, "no file of the failed attempt is left"
    assert any("worker 0 cannot write" in event.why for event in ended.find_events("checkpoint.failing"))
    assert ended.run.run_dir.model_files.weights.exists()


def test_checkpoints_in_mid_run_are_complete_without_a_worker_that_cannot_write(stage):
    ended = play(stage, "0", policy=CheckpointPolicy(every_steps=2, keep_last=9))
    assert ended.outcome.code == 0, ended.describe()
    parts = find_parts(ended)
    assert max(parts) == 9
    assert len(parts) >= 2, ended.describe()
    assert not any("part-0.distcp" in names for names in parts.values())
