"""Any loader reads the finished model, equal states give equal bytes, and no reader sees a part of it."""

import io
import itertools
import json

import pytest
import safetensors
import safetensors.torch
import torch
import xxhash
from torch import nn

from elastane.common.errors import BadInput
from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.nouns.rundir import RunDir
from elastane.run.worker.finished.model_writer import write_finished
from elastane.run.worker.finished.named_tensors import MemoryTensors
from elastane.run.worker.finished.safetensors_files import DTYPES, cut_shards, write_tensors

from .lessons import FEATURES, Lesson, assert_same_bits, build_spec, prepare_lesson, train_elastic

SHARD_BYTES = 200


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.norm = nn.BatchNorm1d(FEATURES)
        self.second = nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(inputs)))


def finish(learned, folder, **wishes):
    folder.mkdir(exist_ok=True)
    write_finished(learned.run._trainer.state, RunDir(folder), build_spec(**wishes))
    return folder


def read_contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("wishes", [{}, {"max_shard_bytes": SHARD_BYTES}])
def test_equal_states_give_equal_bytes(tmp_path, copies, wishes):
    one = finish(train_elastic(Lesson(Tied)), tmp_path / "one", **wishes)
    two = finish(train_elastic(Lesson(Tied), copies=copies), tmp_path / "two", **wishes)
    assert read_contents(one) == read_contents(two)


@pytest.mark.parametrize("wishes", [{}, {"max_shard_bytes": SHARD_BYTES, "save_optimizer": True}])
def test_the_writer_returns_size_and_checksum_of_each_file(tmp_path, wishes):
    state = train_elastic(Lesson(Tied)).run._trainer.state
    for _ in range(2):
        written = write_finished(state, RunDir(tmp_path), build_spec(**wishes))
        there = {
            name: WrittenFile(len(raw), xxhash.xxh3_128_hexdigest(raw))
            for name, raw in read_contents(tmp_path).items()
        }
        assert written == there


def test_writing_again_touches_no_file(tmp_path):
    learned = train_elastic(Lesson(Tied))
    finish(learned, tmp_path, save_optimizer=True)
    before = {path: path.stat().st_ino for path in tmp_path.iterdir()}
    finish(learned, tmp_path, save_optimizer=True)
    assert {path: path.stat().st_ino for path in tmp_path.iterdir()} == before


def test_the_file_loads_into_a_new_model_with_tied_weights_and_buffers(tmp_path):
    learned = train_elastic(Lesson(Tied))
    finish(learned, tmp_path)
    fresh = Tied()
    safetensors.torch.load_model(fresh, tmp_path / "model.safetensors")
    assert_same_bits(fresh, learned.model)


def test_tied_weights_are_stored_once_and_the_other_name_is_kept(tmp_path):
    finish(train_elastic(Lesson(Tied)), tmp_path)
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "second.weight" not in file.keys()  # noqa: SIM118 - not a dictionary
        assert file.metadata() == {"format": "pt", "second.weight": "first.weight"}


def test_a_view_of_the_same_memory_in_another_order_is_not_tied(tmp_path):
    square = torch.arange(9.0).reshape(3, 3)
    tensors = MemoryTensors({"there": square, "back": square.T})
    with (tmp_path / "file").open("wb") as file:
        write_tensors(file, tensors, tensors.descriptions, {})
    read = safetensors.torch.load_file(tmp_path / "file")
    assert torch.equal(read["there"], square)
    assert torch.equal(read["back"], square.T)


def test_safetensors_reads_every_type_and_shape():
    beside = torch.ones(1, dtype=torch.uint8)
    for dtype, shape in itertools.product(DTYPES, [(), (0,), (3, 1), (2, 0, 4)]):
        bits = torch.arange(3 * dtype.itemsize, dtype=torch.uint8)
        values = (bits % 2).bool()[:3] if dtype == torch.bool else bits.view(dtype)
        tensor = values[: torch.Size(shape).numel()].reshape(shape)
        tensors = MemoryTensors({"ünïcode": beside, "it": tensor})
        file = io.BytesIO()
        write_tensors(file, tensors, tensors.descriptions, {"b": "2", "a": "1"})
        read = safetensors.torch.load(file.getvalue())
        assert (read["it"].dtype, read["it"].shape) == (dtype, tensor.shape)
        raw, expected = (bytes(one.reshape(-1).view(torch.uint8)) for one in (read["it"], tensor))
        assert raw == expected, (dtype, shape)
        assert torch.equal(read["ünïcode"], beside), (dtype, shape)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], [[]]),
        ([3, 4], [["0", "1"]]),
        ([3, 5], [["0"], ["1"]]),
        ([3, 99, 1, 6, 1], [["0"], ["1"], ["2", "3"], ["4"]]),
    ],
)
def test_shards_are_filled_in_order_and_a_large_tensor_has_its_own(sizes, expected):
    assert cut_shards({str(i): size for i, size in enumerate(sizes)}, 7) == expected


def test_a_large_model_is_written_as_shards_and_an_index(tmp_path):
    learned = train_elastic(Lesson(Tied))
    whole = finish(learned, tmp_path / "whole")
    cut = finish(learned, tmp_path / "cut", max_shard_bytes=SHARD_BYTES)
    assert not (cut / "model.safetensors").exists()
    index = json.loads((cut / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in cut.glob("*.safetensors"))
    assert files == [f"model-{i:05d}-of-{len(files):05d}.safetensors" for i in range(1, len(files) + 1)]
    assert set(index["weight_map"].values()) == set(files)
    assert len(files) > 1
    together = {}
    for file in files:
        tensors = safetensors.torch.load_file(cut / file)
        assert sum(tensor.nbytes for tensor in tensors.values()) <= SHARD_BYTES
        assert all(index["weight_map"][name] == file for name in tensors)
        together |= tensors
    expected = safetensors.torch.load_file(whole / "model.safetensors")
    assert together.keys() == index["weight_map"].keys() == expected.keys()
    assert all(torch.equal(together[name], expected[name]) for name in expected)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in expected.values())


def test_a_larger_shard_size_leaves_no_shard_of_an_earlier_set(tmp_path):
    learned = train_elastic(Lesson(Tied))
    finish(learned, tmp_path, max_shard_bytes=SHARD_BYTES, save_optimizer=True)
    finish(learned, tmp_path)
    assert set(read_contents(tmp_path)) == {"model.safetensors", "optimizer.json", "environment.json"}


def test_the_optimizer_state_is_stored_under_the_names_of_its_parameters(tmp_path):
    learned = train_elastic(Lesson(Tied))
    finish(learned, tmp_path, save_optimizer=True)
    stored = safetensors.torch.load_file(tmp_path / "optimizer.safetensors")
    names = {parameter: name for name, parameter in learned.model.named_parameters()}
    expected = {
        f"state.{names[parameter]}.{key}": entry
        for parameter, entries in learned.optimizer.state.items()
        for key, entry in entries.items()
    }
    assert stored.keys() == expected.keys()
    assert "state.first.weight.exp_avg_sq" in stored
    assert all(torch.equal(stored[name], expected[name]) for name in expected)


def test_sharded_state_of_the_optimizer_is_refused(tmp_path):
    with pytest.raises(BadInput, match="--copies 2"):
        finish(train_elastic(Lesson(Tied), copies=2), tmp_path, save_optimizer=True)
    assert read_contents(tmp_path) == {}


class Extra(nn.Linear):
    def __init__(self) -> None:
        super().__init__(FEATURES, FEATURES)

    def get_extra_state(self) -> object:
        return {"no": "tensor"}


def complex_model() -> nn.Module:
    model = nn.Linear(FEATURES, FEATURES)
    model.register_buffer("phases", torch.zeros(2, dtype=torch.complex128))
    return model


@pytest.mark.parametrize(("model", "words"), [(Extra, "_extra_state"), (complex_model, "complex128")])
def test_a_model_that_cannot_be_written_is_refused_before_the_training(model, words):
    with pytest.raises(BadInput, match=words):
        prepare_lesson(Lesson(model))
