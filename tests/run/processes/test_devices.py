"""Training in device memory, which peers cannot read, changes no byte.

A mirrored run on the CPU uses everything but the device, and its bytes are those of the reference run. A run
on a GPU, if there is one, has the bytes of a reference run on that GPU.
"""

import pytest
import torch

from .stage import add_worker_2_and_drain_worker_0
from .ways import EVERY_WAY, pair_with_ways

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: torch.cuda.is_available() is False")


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("workers", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 3))])
def test_mirrored_workers_train_to_the_same_bytes(stage, assert_equals_reference, workers, way):
    ended = stage.play("--mirrored", start=workers, **way)
    assert_equals_reference(ended)
    assert set(ended.get_shares(30)) == set(range(workers))


@pytest.mark.parametrize("way", EVERY_WAY)
def test_mirrored_workers_may_join_and_leave(stage, assert_equals_reference, way):
    ended = stage.play(
        "--mirrored", "--paced-from=5", disturb=add_worker_2_and_drain_worker_0, start=2, **way
    )
    assert_equals_reference(ended)
    assert set(ended.get_shares(30)) == {1, 2}


@pytest.mark.parametrize(("moment", "way"), pair_with_ways(["in-backward", "before-vote", "before-apply"]))
def test_a_mirrored_worker_may_die(stage, assert_equals_reference, moment, way):
    ended = stage.play("--mirrored", f"--fault=1:5:{moment}", start=3, **way)
    assert ended.find_subjects("worker.died") == ["worker 1"], ended.describe()
    assert_equals_reference(ended)


def test_values_that_a_dead_mirrored_worker_had_not_published_come_from_its_backup(
    stage, assert_equals_reference
):
    ended = stage.play("--mirrored", "--fault=1:5:after-one-published", start=4, copies=2)
    assert ended.find_subjects("worker.died") == ["worker 1"], ended.describe()
    assert_equals_reference(ended)


# -- on a GPU, shared by all workers -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference_on_gpu(gpu, stage):
    return stage.play("--device=cuda")


def assert_equals_reference_on_gpu(ended, reference):
    assert ended.outcome.code == 0, ended.describe()
    assert ended.run.record.pinned.versions == reference.run.record.pinned.versions
    assert "deterministic=True" in reference.run.record.pinned.versions["device"]
    assert (ended.losses, ended.digests, ended.messages) == (
        reference.losses,
        reference.digests,
        reference.messages,
    )
    assert ended.model_digest == reference.model_digest
    assert ended.verdict.problems == ()


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("workers", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 3))])
def test_workers_on_a_gpu_train_to_the_same_bytes(reference_on_gpu, stage, workers, way):
    ended = stage.play("--device=cuda", start=workers, **way)
    assert_equals_reference_on_gpu(ended, reference_on_gpu)
    assert set(ended.get_shares(30)) == set(range(workers))


@pytest.mark.parametrize("way", EVERY_WAY)
def test_workers_on_a_gpu_may_join_and_leave(reference_on_gpu, stage, way):
    ended = stage.play(
        "--device=cuda", "--paced-from=5", disturb=add_worker_2_and_drain_worker_0, start=2, **way
    )
    assert_equals_reference_on_gpu(ended, reference_on_gpu)


@pytest.mark.parametrize(("moment", "way"), pair_with_ways(["in-backward", "before-vote", "before-apply"]))
def test_a_worker_on_a_gpu_may_die(reference_on_gpu, stage, moment, way):
    ended = stage.play("--device=cuda", f"--fault=1:5:{moment}", start=3, **way)
    assert ended.find_subjects("worker.died") == ["worker 1"], ended.describe()
    assert_equals_reference_on_gpu(ended, reference_on_gpu)
