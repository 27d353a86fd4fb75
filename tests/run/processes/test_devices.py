"""Training in device memory, which peers cannot read, changes no byte.

A mirrored run on the CPU uses everything but the device, and its bytes are those of the reference run. A run
on a GPU, if there is one, has the bytes of a reference run on that GPU.
"""

import pytest
import torch

from elastane.run.worker.state.gpu_memory import ROOMS

from .stage import add_worker_2_and_drain_worker_0, find_members
from .ways import EVERY_WAY, pair_with_ways

pytestmark = pytest.mark.processes

MIRRORS = ["--mirrored", "--rooms"]
"""Peers read copies of a mirrored model on the host, or its memory itself, which they map through a door."""


def list_mapping_workers(ended):
    """Return the workers that have mapped a room of another one."""
    return {int(path.name.removeprefix("mapped-")) for path in ended.run.run_dir.root.glob("mapped-*")}


@pytest.fixture(scope="module")
def gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: torch.cuda.is_available() is False")


@pytest.mark.parametrize("mirror", MIRRORS)
@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("workers", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 3))])
def test_mirrored_workers_train_to_the_same_bytes(stage, assert_equals_reference, workers, way, mirror):
    ended = stage.play(mirror, start=workers, **way)
    assert_equals_reference(ended)
    assert set(ended.get_shares(30)) == set(range(workers))
    maps = mirror == "--rooms" and way["transport"] == "shared" and workers > 1
    assert list_mapping_workers(ended) == (set(range(workers)) if maps else set())


@pytest.mark.parametrize("mirror", MIRRORS)
@pytest.mark.parametrize("way", EVERY_WAY)
def test_mirrored_workers_may_join_and_leave(stage, assert_equals_reference, way, mirror):
    ended = stage.play(mirror, "--paced-from=5", disturb=add_worker_2_and_drain_worker_0, start=2, **way)
    assert_equals_reference(ended)
    assert set(ended.get_shares(30)) == {1, 2}


@pytest.mark.parametrize("mirror", MIRRORS)
def test_a_joiner_gets_what_scripts_have_changed_after_values_were_published(
    stage, assert_equals_reference, mirror
):
    async def add_worker_3(run):
        await run.wait_for_step(4)
        await run.resize(4)
        await run.wait_for_event("worker.ready", "worker 3")
        await run.step_until(lambda answer: 3 in find_members(answer))
        run.stop_pacing()

    ended = stage.play(mirror, "--paced-from=5", disturb=add_worker_3, start=3, copies=2)
    assert_equals_reference(ended)
    assert set(ended.get_shares(30)) == {0, 1, 2, 3}


@pytest.mark.parametrize(("moment", "way"), pair_with_ways(["in-backward", "before-vote", "before-apply"]))
def test_a_mirrored_worker_may_die(stage, assert_equals_reference, moment, way):
    ended = stage.play("--mirrored", f"--fault=1:5:{moment}", start=3, **way)
    assert ended.find_subjects("worker.died") == ["worker 1"], ended.describe()
    assert_equals_reference(ended)


@pytest.mark.parametrize("copies", [None, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("moment", ["in-backward", "before-vote", "before-apply"])
def test_a_worker_may_die_while_others_read_its_room(stage, assert_equals_reference, moment, copies):
    ended = stage.play("--rooms", f"--fault=1:5:{moment}", start=3, copies=copies)
    assert ended.find_subjects("worker.died") == ["worker 1"], ended.describe()
    assert_equals_reference(ended)
    assert list_mapping_workers(ended) >= {0, 1, 2}


@pytest.mark.parametrize("mirror", MIRRORS)
def test_values_that_a_dead_mirrored_worker_had_not_published_come_from_its_backup(
    stage, assert_equals_reference, mirror
):
    ended = stage.play(mirror, "--fault=1:5:after-one-published", start=4, copies=2)
    assert ended.find_subjects("worker.died") == ["worker 1"], ended.describe()
    assert_equals_reference(ended)


def test_workers_with_rooms_train_with_some_that_have_none(stage, assert_equals_reference):
    """Those without read copies in the arenas, as workers on another kind of device would."""
    ended = stage.play("--rooms", "--no-rooms-of=1", start=3)
    assert_equals_reference(ended)
    assert list_mapping_workers(ended) == {0, 2}


# -- on a GPU, shared by all workers -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference_on_gpu(gpu, stage):
    return stage.play("--device=cuda")


@pytest.fixture(params=["arenas", "rooms"])
def memory_of_peers(request, monkeypatch):
    """Let workers read each other's copies on the host, or each other's memory of the GPU."""
    monkeypatch.setenv(ROOMS, "1" if request.param == "rooms" else "0")


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


@pytest.mark.usefixtures("memory_of_peers")
@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("workers", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 3))])
def test_workers_on_a_gpu_train_to_the_same_bytes(reference_on_gpu, stage, workers, way):
    ended = stage.play("--device=cuda", start=workers, **way)
    assert_equals_reference_on_gpu(ended, reference_on_gpu)
    assert set(ended.get_shares(30)) == set(range(workers))


@pytest.mark.usefixtures("memory_of_peers")
@pytest.mark.parametrize("way", EVERY_WAY)
def test_workers_on_a_gpu_may_join_and_leave(reference_on_gpu, stage, way):
    ended = stage.play(
        "--device=cuda", "--paced-from=5", disturb=add_worker_2_and_drain_worker_0, start=2, **way
    )
    assert_equals_reference_on_gpu(ended, reference_on_gpu)


@pytest.mark.usefixtures("memory_of_peers")
@pytest.mark.parametrize(("moment", "way"), pair_with_ways(["in-backward", "before-vote", "before-apply"]))
def test_a_worker_on_a_gpu_may_die(reference_on_gpu, stage, moment, way):
    ended = stage.play("--device=cuda", f"--fault=1:5:{moment}", start=3, **way)
    assert ended.find_subjects("worker.died") == ["worker 1"], ended.describe()
    assert_equals_reference_on_gpu(ended, reference_on_gpu)
