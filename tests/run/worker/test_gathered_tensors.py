"""Workers pass each other the tensors of microbatches through files, which may be lost or wrong."""

import pytest
import torch

from elastane.run.worker.gathered_tensors import GatheredTensors, RoundFolders, drop_places

ROUND = 5


@pytest.fixture
def workers(tmp_path):
    """Two workers with folders of their own view of one file system."""
    return [GatheredTensors(number, RoundFolders(tmp_path / "gathered")) for number in range(2)]


def make_tensors(rank):
    generator = torch.Generator().manual_seed(rank)
    return {
        "logits": torch.randn(rank + 1, 3, generator=generator),
        "half": torch.randn(2, generator=generator).bfloat16(),
        "flags": torch.tensor([True, False]),
        "one": torch.tensor(rank),
        "none": torch.empty(0, 4),
    }


def compute(worker, rank):
    worker.begin()
    worker.add(**make_tensors(rank))
    return worker.take(ROUND, rank)


def compute_all(workers):
    """Let the workers compute six microbatches in turns; return the sums."""
    sums = {"loss": 1.5}
    for rank in (3, 0, 5, 1, 4, 2):
        sums |= compute(workers[rank % 2], rank)
    return sums


def assert_complete(worker):
    worker.complete()
    assert list(worker) == ["flags", "half", "logits", "none", "one"]
    for rank in range(6):
        for name, tensor in make_tensors(rank).items():
            assert worker[name][rank].dtype == tensor.dtype
            assert torch.equal(worker[name][rank], tensor)


def test_all_workers_have_all_tensors(workers):
    sums = compute_all(workers)
    for worker in workers:
        assert worker.collect(ROUND, sums, lambda: None) == []
        assert_complete(worker)
    assert drop_places(sums) == {"loss": 1.5}


@pytest.mark.parametrize("damage", ["lost", "cut", "altered", "replaced"])
def test_what_cannot_be_read_is_computed_again(workers, tmp_path, damage):
    sums = compute_all(workers)
    path = tmp_path / "gathered" / str(ROUND) / "1"
    content = path.read_bytes()
    if damage == "lost":
        path.unlink()
    elif damage == "replaced":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(content[:-1] if damage == "cut" else bytes([content[0] ^ 1]) + content[1:])
    missing = workers[0].collect(ROUND, sums, lambda: None)
    assert missing == {"cut": [1], "altered": [3]}.get(damage, [1, 3, 5]), damage
    for rank in missing:
        workers[0].begin()
        workers[0].add(**make_tensors(rank))
        workers[0].keep(rank)
    assert_complete(workers[0])


def test_tensors_that_cannot_be_written_are_computed_again(workers, tmp_path, capsys):
    (tmp_path / "gathered").write_bytes(b"in the way of the directory")
    sums = compute(workers[0], 0) | compute(workers[1], 1)
    assert "tensors of an evaluation cannot be written" in capsys.readouterr().err
    assert [worker.collect(ROUND, sums, lambda: None) for worker in workers] == [[1], [0]]


def test_a_virtual_rank_that_two_workers_have_computed_has_the_tensors_once(workers):
    compute(workers[0], 0)
    sums = compute(workers[1], 0)
    for worker in workers:
        worker.collect(ROUND, sums, lambda: None)
        worker.complete()
        assert len(worker["logits"]) == 1


def test_files_are_removed_after_the_next_round(tmp_path):
    folders = RoundFolders(tmp_path / "gathered")
    reader = RoundFolders(tmp_path / "gathered")
    (folders.create(ROUND) / "0").write_bytes(b"tensors")
    reader.use(ROUND)
    reader.remove_before(ROUND)
    assert reader.use(ROUND).is_dir()
    reader.remove_before(ROUND + 1)
    assert not (tmp_path / "gathered" / str(ROUND)).exists()
    folders.remove_before(ROUND + 1)
    assert folders.create(ROUND + 2).is_dir()


def test_a_process_that_trains_alone_writes_nothing():
    alone = GatheredTensors(0, None)
    alone.begin()
    alone.add(logits=torch.ones(2))
    assert alone.take(ROUND, 0) == {}
    assert alone.collect(ROUND, {}, lambda: None) == []
    alone.complete()
    assert torch.equal(alone["logits"][0], torch.ones(2))
