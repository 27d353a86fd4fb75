"""Training away from the memory that peers read changes no byte.

Mirrored on the CPU, everything but the device itself takes part; its bytes are those of the quiet run in
place. On a GPU, if there is one, they are those of a quiet run on that GPU.
"""

import pytest
import torch

from .stage import one_joins_and_one_leaves

pytestmark = pytest.mark.processes

WAYS = [
    pytest.param({"copies": None, "transport": "shared"}, id="whole-shared"),
    pytest.param({"copies": None, "transport": "tcp"}, id="whole-tcp"),
    pytest.param({"copies": 2, "transport": "shared"}, id="sharded-shared"),
    pytest.param({"copies": 2, "transport": "tcp"}, id="sharded-tcp"),
]


@pytest.fixture(scope="module")
def gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: torch.cuda.is_available() is False")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_mirrored_workers_train_to_the_same_bytes(stage, assert_undisturbed, workers, way):
    ended = stage.play("--mirrored", start=workers, **way)
    assert_undisturbed(ended)
    assert set(ended.shares(30)) == set(range(workers))


@pytest.mark.parametrize("way", WAYS)
def test_mirrored_workers_join_and_leave(stage, assert_undisturbed, way):
    ended = stage.play("--mirrored", "--paced-from=5", story=one_joins_and_one_leaves, start=2, **way)
    assert_undisturbed(ended)
    assert set(ended.shares(30)) == {1, 2}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("moment", ["in-backward", "before-vote", "before-apply"])
def test_a_mirrored_worker_dies(stage, assert_undisturbed, moment, way):
    ended = stage.play("--mirrored", f"--fault=1:5:{moment}", start=3, **way)
    assert ended.who("worker.died") == ["worker 1"], ended.story()
    assert_undisturbed(ended)


def test_values_a_mirrored_worker_had_not_passed_on_come_from_its_backup(stage, assert_undisturbed):
    ended = stage.play("--mirrored", "--fault=1:5:after-one-published", start=4, copies=2)
    assert ended.who("worker.died") == ["worker 1"], ended.story()
    assert_undisturbed(ended)


# -- on a GPU, shared by all workers -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def quiet_on_gpu(gpu, stage):
    return stage.play("--device=cuda")


def assert_undisturbed_on_gpu(ended, quiet):
    assert ended.over.code == 0, ended.story()
    assert ended.run.record.pinned.versions == quiet.run.record.pinned.versions
    assert "deterministic=True" in quiet.run.record.pinned.versions["device"]
    assert (ended.losses, ended.digests, ended.said) == (quiet.losses, quiet.digests, quiet.said)
    assert ended.model == quiet.model
    assert ended.verdict.problems == ()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_on_a_gpu_train_to_the_same_bytes(quiet_on_gpu, stage, workers, way):
    ended = stage.play("--device=cuda", start=workers, **way)
    assert_undisturbed_on_gpu(ended, quiet_on_gpu)
    assert set(ended.shares(30)) == set(range(workers))


@pytest.mark.parametrize("way", WAYS)
def test_workers_on_a_gpu_join_and_leave(quiet_on_gpu, stage, way):
    ended = stage.play("--device=cuda", "--paced-from=5", story=one_joins_and_one_leaves, start=2, **way)
    assert_undisturbed_on_gpu(ended, quiet_on_gpu)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("moment", ["in-backward", "before-vote", "before-apply"])
def test_a_worker_on_a_gpu_dies(quiet_on_gpu, stage, moment, way):
    ended = stage.play("--device=cuda", f"--fault=1:5:{moment}", start=3, **way)
    assert ended.who("worker.died") == ["worker 1"], ended.story()
    assert_undisturbed_on_gpu(ended, quiet_on_gpu)
