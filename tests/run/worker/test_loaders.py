"""Loader processes change the duration of a step, and nothing else."""

import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from elastane.run.protocol.actions import BeginRound
from elastane.run.worker.data.batch_sources import MapBatchSource, make_plan
from elastane.run.worker.links.mesh import Mesh
from tests.waiting import wait_until

from .lessons import (
    CLASSES,
    FEATURES,
    Lesson,
    assert_same_bits,
    compute_mean_loss,
    make_samples,
    prepare_lesson,
)

LENGTH = 23


class Augmented:
    """A dataset that draws from every generator, a different number of times for each sample."""

    def __init__(self) -> None:
        self.samples = make_samples(LENGTH)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, target = self.samples[index]
        for _ in range(index % 3 + 1):
            noise = torch.randn(FEATURES) + random.random() + torch.tensor(np.random.rand(FEATURES))
        return (inputs + 0.1 * noise).float(), target


def train(dataset, *, steps=7, **options):
    learned = prepare_lesson(Lesson(lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Dropout(0.3))))
    for step in learned.run.steps(dataset, global_batch=8, microbatch=2, until=steps, **options):
        for batch in step:
            step.backward(compute_mean_loss(learned.model, batch)[0])
        learned.losses.append(step.loss)
    return learned


@pytest.mark.parametrize(("loaders", "prefetch"), [(1, 1), (2, 2), (2, 5)])
def test_a_batch_has_the_same_bytes_from_a_loader_and_from_the_worker(loaders, prefetch):
    here, there = train(Augmented()), train(Augmented(), loaders=loaders, prefetch=prefetch)
    assert here.losses == there.losses
    assert_same_bits(here.model, there.model)
    assert here.run.digest == there.run.digest


def test_a_batch_is_loaded_with_one_thread():
    torch.set_num_threads(2)
    source = MapBatchSource(Threads(), build_plan(LENGTH), None)
    assert source.load(1, 0).inputs.tolist() == [1, 1]
    assert torch.get_num_threads() == 2


class Threads:
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return torch.get_num_threads()


def build_plan(length, *, steps=20):
    return make_plan(length, 8, 2, steps, virtual_ranks=None, seed=3)


@pytest.fixture
def sources(monkeypatch) -> Iterator[tuple[MapBatchSource, MapBatchSource, list[tuple[int, int]]]]:
    """Yield a source without loaders, one with loaders, and the requests that the latter loaded itself."""
    here = MapBatchSource(Augmented(), build_plan(LENGTH), None)
    ahead = MapBatchSource(Augmented(), build_plan(LENGTH), None, loaders=2)
    loaded_here: list[tuple[int, int]] = []
    load = ahead._load_samples
    monkeypatch.setattr(ahead, "_load_samples", lambda request: loaded_here.append(request) or load(request))
    yield here, ahead, loaded_here
    ahead.close()


def compute(sources, step, ranks, *, expected=None):
    here, ahead, _ = sources
    for place, rank in enumerate(ranks):
        ahead.expect(BeginRound(step, step, 1, 1), (expected or ranks)[place:])
        batch, batch_ahead = here.load(step, rank), ahead.load(step, rank)
        assert (batch.samples, batch.checksum) == (batch_ahead.samples, batch_ahead.checksum)
        torch.testing.assert_close(batch.inputs, batch_ahead.inputs, rtol=0, atol=0)


def test_the_worker_does_not_load_predicted_batches(sources):
    for step in range(1, 12):
        compute(sources, step, [0, 1, 2, 3])
    # Before the first step it is unknown which worker computes these virtual ranks.
    assert {step for step, _ in sources[2]} <= {1, 2}


def test_batches_stay_correct_when_a_change_of_membership_makes_predictions_useless(sources):
    shares = [[0, 1, 2, 3], [2], [2], [2], [0, 1], [0, 1, 3], [0, 1, 3, 2], [3], [3], [3], [3], [3], [1, 3]]
    for step, ranks in enumerate(shares, start=1):
        compute(sources, step, ranks)
    sources[2].clear()
    for step in range(len(shares) + 1, 20):
        compute(sources, step, [1, 3])
    assert len(sources[2]) < 4


def test_virtual_ranks_of_a_dead_worker_are_loaded_at_once(sources):
    compute(sources, 1, [0, 1])
    compute(sources, 2, [0, 1])
    compute(sources, 2, [2, 3])
    compute(sources, 3, [0, 1, 2, 3])


def test_an_end_of_an_epoch_leaves_virtual_ranks_without_samples(sources):
    for step in range(1, 10):
        compute(sources, step, [0, 1, 2, 3])
    assert [sources[1].load(3, rank).samples for rank in range(4)] == [2, 2, 2, 1]


class Damaged(Augmented):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 5:
            raise OSError(f"sample {index} is damaged")
        return super().__getitem__(index)


@pytest.mark.parametrize("loaders", [0, 2])
def test_an_exception_of_the_dataset_arrives_as_the_users_own(loaders):
    with pytest.raises(OSError, match=r"^sample 5 is damaged$") as error:
        train(Damaged(), loaders=loaders)
    assert error.traceback[-1].name == "__getitem__"
    assert error.value.__cause__ is None


def test_loaders_end_with_the_loop():
    before = set(multiprocessing.active_children())
    train(Augmented(), loaders=2)
    assert set(multiprocessing.active_children()) == before


def test_loaders_die_with_a_worker_that_is_killed(tmp_path):
    pid = os.fork()
    if pid == 0:
        source = MapBatchSource(Augmented(), build_plan(LENGTH), None, loaders=2)
        source.load(1, 0)
        text = " ".join(str(child.pid) for child in multiprocessing.active_children())
        (tmp_path / "partial").write_text(text)
        (tmp_path / "partial").rename(tmp_path / "pids")
        signal.pause()
    wait_until((tmp_path / "pids").exists, "the worker has loaders")
    loaders = [int(loader) for loader in (tmp_path / "pids").read_text().split()]
    assert len(loaders) == 2
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_until(lambda: not any(map(_is_alive, loaders)), "the loaders have ended with their worker")


def test_loaders_do_not_hold_the_connections_of_their_worker():
    mesh = Mesh(0, b"secret")
    source = MapBatchSource(Augmented(), build_plan(LENGTH), None, loaders=1)
    source.load(1, 0)
    loader = multiprocessing.active_children()[-1].pid
    listening = read_socket_inode(os.getpid(), mesh._entrance.listener.fileno())
    assert listening.startswith("socket:")
    open_files = {read_socket_inode(loader, int(fd.name)) for fd in Path(f"/proc/{loader}/fd").iterdir()}
    assert listening not in open_files
    source.close()
    mesh.close()


def read_socket_inode(pid: int, fd: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/fd/{fd}").readlink())
    except FileNotFoundError:
        return ""


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_all_samples_are_read_in_one_call_from_a_dataset_with_getitems():
    class AtOnce(Augmented):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [-index for index in indices]

        def __getitem__(self, index: int) -> int:
            raise AssertionError("one by one")

    batch = MapBatchSource(AtOnce(), build_plan(LENGTH), None).load(1, 0)
    assert (batch.inputs < 0).all()
