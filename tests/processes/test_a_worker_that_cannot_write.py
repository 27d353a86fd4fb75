"""What one worker cannot write of a checkpoint, another one writes that has the same state."""

import pytest

from elastane.api.spec import CheckpointPolicy
from elastane.storage.catalog import Catalog
from elastane.storage.local import LocalStorage

pytestmark = pytest.mark.processes


def play(stage, whom, *, policy, **wishes):
    return stage.play(
        "no room", whom, script="exhausted.py", checkpoints=policy, **{"start": 2, "max_workers": 3} | wishes
    )


def kept(ended):
    """Steps of the checkpoints of which every byte is as it was written, and whose parts they have."""
    catalog = Catalog(LocalStorage(ended.run.run_dir.checkpoints))
    found = {}
    for name in catalog.list_names():
        assert catalog.verify(name) == (), (name, ended.story())
        found[catalog.load_manifest(name).step] = {part.name for part in catalog.load_manifest(name).parts}
    return found


@pytest.mark.parametrize(("workers", "copies"), [(2, None), (2, 2), (3, 2)])
def test_the_last_checkpoint(stage, workers, copies):
    ended = play(stage, "0", policy=CheckpointPolicy(), start=workers, copies=copies)
    assert ended.over.code == 0, ended.story()
    parts = kept(ended)[9]
    assert "part-0.distcp" not in parts, ended.story()
    files = {path.name for path in (ended.run.run_dir.checkpoints / "step-00000009").iterdir()}
    assert "part-0.distcp" not in files, "nothing of the failed attempt is left"
    assert any("worker 0 cannot write" in event.why for event in ended.events("checkpoint.failing"))
    assert ended.run.run_dir.model_files.weights.exists()


def test_those_in_mid_run(stage):
    ended = play(stage, "0", policy=CheckpointPolicy(every_steps=2, keep_last=9))
    assert ended.over.code == 0, ended.story()
    parts = kept(ended)
    assert max(parts) == 9
    assert len(parts) >= 2, ended.story()
    assert not any("part-0.distcp" in names for names in parts.values())
