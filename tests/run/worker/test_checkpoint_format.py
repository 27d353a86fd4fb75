"""Plain PyTorch and Elastane read checkpoints bit for bit as they were written."""

import copy
import errno
import fcntl
import importlib
import io
import math
import mmap
import os
import pickle
import warnings

import msgspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint import metadata as theirs
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

from elastane.common.errors import BadInput, Damaged
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.rectangles import Box, compute_dense_stride, sort_dims
from elastane.run.checkpoints.storage import local
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.nouns.checkpoints import (
    METADATA,
    PLAIN,
    Manifest,
    PartFile,
    PartItem,
    PlainPartItem,
    TensorFacts,
    format_checkpoint_name,
    format_part_name,
)
from elastane.run.worker.checkpoints.dcp_classes import NAMES
from elastane.run.worker.checkpoints.dcp_metadata import encode_metadata
from elastane.run.worker.checkpoints.part_encoding import EncodedPart, TensorSlice, make_envelope, slice_whole
from elastane.run.worker.checkpoints.reader import CheckpointReader, ReadRequest

from .checkpoint_stage import OPTIMIZERS, Small, build_state, iterate_leaves, save, train


@pytest.fixture
def catalog(tmp_path):
    return Catalog(LocalStorage(tmp_path / "checkpoints"))


def flatten(tensor):
    return tensor.detach().permute(sort_dims(tensor.shape, tensor.stride())).reshape(-1)


def assert_same_bits(one, other):
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    one, other = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    assert torch.equal(one, other)


def assert_same_state(one, other):
    ours, theirs = dict(iterate_leaves(one)), dict(iterate_leaves(other))
    assert ours.keys() == theirs.keys()
    for path, value in ours.items():
        if isinstance(value, torch.Tensor):
            assert_same_bits(value, theirs[path])
        else:
            assert value == theirs[path], path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_plain_pytorch_resumes_from_a_checkpoint(kind, catalog, tmp_path):
    model, optimizer = train(kind)
    expected = copy.deepcopy(build_state(model, optimizer))
    save(catalog, 7, build_state(model, optimizer))

    fresh, fresh_optimizer = train(kind, seed=1)
    found = build_state(fresh, fresh_optimizer)
    dcp.load(found, checkpoint_id=tmp_path / "checkpoints" / format_checkpoint_name(7), no_dist=True)
    fresh.load_state_dict(found["model"])
    set_optimizer_state_dict(fresh, fresh_optimizer, found["optimizer"])

    assert_same_state(build_state(fresh, fresh_optimizer), expected)
    assert fresh.head.weight is fresh.embed.weight
    for network, its in ((model, optimizer), (fresh, fresh_optimizer)):
        torch.manual_seed(3)
        its.zero_grad()
        network(torch.randn(2, 3, 6, 6), torch.tensor([0, 6])).backward()
        its.step()
    assert_same_state(build_state(fresh, fresh_optimizer), build_state(model, optimizer))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_checkpoint_reads_like_one_that_dcp_has_written(kind, catalog, tmp_path):
    nested = build_state(*train(kind))
    save(catalog, 7, nested, writers=1, borders=())
    dcp.save(nested, checkpoint_id=tmp_path / "theirs", no_dist=True)
    ours = dcp.FileSystemReader(tmp_path / "checkpoints" / format_checkpoint_name(7)).read_metadata()
    theirs = dcp.FileSystemReader(tmp_path / "theirs").read_metadata()
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.planner_data == theirs.planner_data
    assert ours.storage_data.keys() == theirs.storage_data.keys()
    assert ours.version == theirs.version


@pytest.mark.filterwarnings("ignore")
def test_the_converter_of_torch_makes_one_file_of_a_checkpoint(catalog, tmp_path):
    nested = build_state(*train("adamw"))
    save(catalog, 7, nested)
    dcp_to_torch_save(tmp_path / "checkpoints" / format_checkpoint_name(7), tmp_path / "one.pt")
    assert_same_state(torch.load(tmp_path / "one.pt", weights_only=True), nested)


@pytest.mark.filterwarnings("ignore")
def test_tied_weights_are_stored_once(catalog):
    manifest = save(catalog, 1, build_state(*train("momentum")))
    stored = {item.key for part in manifest.parts for item in part.items}
    assert "model.embed.weight" in stored
    assert "model.head.weight" not in stored
    assert manifest.aliases == {"model.head.weight": "model.embed.weight"}


@settings(max_examples=40)
@given(data=st.data())
def test_any_range_is_read_from_any_division_into_items(data, tmp_path_factory):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), max_size=4), label="shape"))
    order = data.draw(st.permutations(range(len(shape))), label="order")
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8]))
    stride, elements = compute_dense_stride(shape, order), math.prod(shape)
    tensor = torch.empty_strided(shape, stride, dtype=dtype)
    tensor.copy_(torch.randint(0, 2, shape))
    borders = data.draw(st.lists(st.integers(0, elements), max_size=5), label="borders")
    catalog = Catalog(LocalStorage(tmp_path_factory.mktemp("cut")))
    manifest = save(catalog, 1, {"model": {"w": tensor}}, borders=borders)

    start = data.draw(st.integers(0, elements), label="start")
    stop = data.draw(st.integers(start, elements), label="stop")
    into = torch.empty(stop - start, dtype=dtype)
    with CheckpointReader(catalog.storage, manifest) as reader:
        reader.read("model.w", start, stop, into)
    assert torch.equal(into, flatten(tensor)[start:stop])

    found = {"model": {"w": torch.empty(shape, dtype=dtype)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(found, checkpoint_id=f"{catalog.storage.url}/{manifest.name}", no_dist=True)
    assert torch.equal(found["model"]["w"], tensor)


@settings(max_examples=40)
@given(data=st.data())
def test_any_part_is_read_from_any_division_into_parts(data, tmp_path_factory):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3), label="shape"))
    order = data.draw(st.permutations(range(len(shape))), label="order")
    stride = compute_dense_stride(shape, order)
    tensor = torch.empty_strided(shape, stride).copy_(torch.arange(math.prod(shape)).view(shape))
    dim = data.draw(st.integers(0, len(shape) - 1), label="dim")
    cut = data.draw(st.integers(0, shape[dim]), label="cut")
    catalog = Catalog(LocalStorage(tmp_path_factory.mktemp("parts")))

    def flatten_part(corner, sizes):
        part = tensor[Box(corner, sizes).slice((0,) * len(shape))]
        return part.permute(order).reshape(-1).contiguous()

    parts = []
    for writer, (first, last) in enumerate([(0, cut), (cut, shape[dim])]):
        corner, sizes = [0] * len(shape), [*shape]
        corner[dim], sizes[dim] = first, last - first
        elements = flatten_part(corner, sizes)
        border = data.draw(st.integers(0, len(elements)), label="border")
        box = Box(tuple(corner), tuple(sizes))
        slices = [
            TensorSlice("model.w", shape, stride, start, stop, elements[start:stop], box)
            for start, stop in ((0, border), (border, len(elements)))
            if start < stop
        ]
        encoded = EncodedPart(format_part_name(writer), slices)
        parts.append(encoded.describe(catalog.write(format_checkpoint_name(1), encoded.name, encoded)))
    manifest = Manifest(name=format_checkpoint_name(1), step=1, created="", parts=tuple(parts))
    catalog.publish(manifest)

    corner = tuple(data.draw(st.integers(0, size - 1), label="corner") for size in shape)
    ends = tuple(
        data.draw(st.integers(at + 1, size), label="end") for at, size in zip(corner, shape, strict=True)
    )
    wanted = Box(corner, tuple(end - at for at, end in zip(corner, ends, strict=True)))
    start = data.draw(st.integers(0, wanted.elements), label="start")
    into = torch.empty(wanted.elements - start)
    with CheckpointReader(catalog.storage, manifest) as reader:
        reader.read_many([ReadRequest("model.w", start, wanted.elements, into, wanted)])
    assert torch.equal(into, flatten_part(wanted.offsets, wanted.sizes)[start:])


def test_many_tensors_are_read_in_one_call(catalog):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = build_state(*train("adamw"))
    manifest = save(catalog, 3, nested)
    tensors = {".".join(map(str, p)): v for p, v in iterate_leaves(nested) if isinstance(v, torch.Tensor)}
    into = {
        key: torch.empty(manifest.tensors[key].elements, dtype=tensors[key].dtype) for key in manifest.tensors
    }
    with CheckpointReader(catalog.storage, manifest) as reader:
        reader.read_many([ReadRequest(key, 0, memory.numel(), memory) for key, memory in into.items()])
    for key, memory in into.items():
        assert_same_bits(memory, flatten(tensors[key]))
    assert into.keys() | manifest.aliases.keys() == tensors.keys()


def test_a_tensor_without_elements_survives(catalog, tmp_path):
    save(catalog, 1, {"model": {"nothing": torch.empty(3, 0), "something": torch.ones(2)}})
    found = {"model": {"nothing": torch.empty(3, 0), "something": torch.zeros(2)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(found, checkpoint_id=tmp_path / "checkpoints" / format_checkpoint_name(1), no_dist=True)
    assert torch.equal(found["model"]["something"], torch.ones(2))


def test_encoding_a_part_does_not_copy_the_state(catalog):
    tensor = torch.arange(1 << 16, dtype=torch.float32)
    encoded = EncodedPart("part-0.distcp", [TensorSlice("model.w", (1 << 16,), (1,), 0, 1 << 16, tensor)])
    before, raw, after = encoded
    assert torch.frombuffer(raw, dtype=torch.float32).data_ptr() == tensor.data_ptr()
    assert len(before) + len(after) < 2048
    assert encoded.bytes == len(before) + len(raw) + len(after)


def test_an_envelope_does_not_depend_on_the_values():
    for stride in ((4, 1), (1, 3)):
        around = make_envelope(torch.float32, (3, 4), stride)
        values = torch.randn(12)
        file = memoryview(around.before + values.numpy().tobytes() + around.after)
        loaded = torch.load(io.BytesIO(file), weights_only=True)
        assert loaded.stride() == stride
        assert torch.equal(loaded, values.as_strided((3, 4), stride))


def test_overhead_on_storage_is_below_one_percent_for_full_blocks(catalog):
    encoded = EncodedPart(
        "part-0.distcp", [slice_whole(f"model.{n}", torch.zeros(1 << 18)) for n in range(8)]
    )
    assert encoded.bytes <= 1.01 * (8 << 20)


def test_a_missing_writer_prevents_the_checkpoint(catalog):
    entry = slice_whole("model.w", torch.arange(10.0))
    encoded = EncodedPart("part-0.distcp", [msgspec.structs.replace(entry, stop=6, data=entry.data[:6])])
    part = encoded.describe(catalog.write(format_checkpoint_name(1), encoded.name, encoded))
    good = save(catalog, 2, {"model": {"w": torch.arange(10.0)}})
    with pytest.raises(BadInput, match=r"model\.w: 4 of 10 elements are missing"):
        catalog.publish(msgspec.structs.replace(good, name=format_checkpoint_name(1), step=1, parts=(part,)))
    assert catalog.inspect(format_checkpoint_name(1)).summary.state == "unfinished"


def test_a_changed_byte_is_reported_before_it_is_used(catalog):
    manifest = save(catalog, 1, {"model": {"w": torch.arange(64.0), "v": torch.arange(9.0)}})
    part = next(part for part in manifest.parts if any(item.key == "model.w" for item in part.items))
    item = next(item for item in part.items if item.key == "model.w")
    path = f"{catalog.storage.url}/{manifest.name}/{part.name}"
    with open(path, "r+b") as file:  # noqa: PTH123
        file.seek(item.raw_offset + 3)
        byte = file.read(1)
        file.seek(item.raw_offset + 3)
        file.write(bytes([byte[0] ^ 4]))
    with CheckpointReader(catalog.storage, manifest) as reader, pytest.raises(Damaged, match=part.name):
        reader.read("model.w", 0, 64, torch.empty(64))


def test_invalid_requests_are_refused(catalog):
    manifest = save(catalog, 1, {"model": {"w": torch.arange(64.0)}})
    with CheckpointReader(catalog.storage, manifest) as reader:
        with pytest.raises(ValueError, match=r"no tensor model\.u"):
            reader.read("model.u", 0, 1, torch.empty(1))
        with pytest.raises(ValueError, match="do not fit into float64"):
            reader.read("model.w", 0, 64, torch.empty(64, dtype=torch.float64))
        with pytest.raises(ValueError, match="of a tensor of 64"):
            reader.read("model.w", 60, 70, torch.empty(10))


def test_the_manifest_lists_every_file(catalog, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        manifest = save(catalog, 1, build_state(*train("adamw")))
    there = {path.name for path in (tmp_path / "checkpoints" / manifest.name).iterdir()}
    assert there == {part.name for part in manifest.parts} | {"manifest.json", "COMPLETE"}
    assert {METADATA, PLAIN} <= there
    assert catalog.load_manifest(manifest.name) == msgspec.json.decode(
        msgspec.json.encode(manifest), type=type(manifest)
    )


def test_a_channels_last_tensor_is_not_copied():
    conv = Small().to(memory_format=torch.channels_last).conv.weight
    entry = slice_whole("model.conv.weight", conv)
    assert entry.stride == conv.stride()
    assert entry.data.data_ptr() == conv.data_ptr()


def test_a_checkpoint_replaces_an_unfinished_attempt(catalog):
    save(catalog, 1, {"model": {"w": torch.arange(64.0)}})
    manifest = save(catalog, 1, {"model": {"w": torch.arange(64.0) + 1}})
    into = torch.empty(64)
    with CheckpointReader(catalog.storage, catalog.load_manifest(manifest.name)) as reader:
        reader.read("model.w", 0, 64, into)
    assert torch.equal(into, torch.arange(64.0) + 1)
    assert catalog.verify(manifest.name) == ()


def test_a_copied_part_has_the_same_bytes_as_one_written_from_the_state(catalog):
    tensors = {f"model.t{n}": torch.randn(n, 37) for n in (1, 3, 0, 500)}
    streamed = EncodedPart("streamed", [slice_whole(key, tensor) for key, tensor in tensors.items()])
    laid_out = EncodedPart("laid-out", [slice_whole(key, tensor) for key, tensor in tensors.items()])
    memory = torch.zeros(streamed.bytes + 4096, dtype=torch.uint8)
    laid_out.lay_out(memory)
    part = streamed.describe(catalog.write("step-00000001", "streamed", streamed))
    for tensor in tensors.values():
        tensor.zero_()
    copied = laid_out.describe(catalog.write("step-00000001", "laid-out", laid_out))
    assert copied == msgspec.structs.replace(part, name="laid-out")


def test_whole_pages_are_written_directly_and_the_rest_through_the_page_cache(tmp_path):
    content = os.urandom(3 * mmap.PAGESIZE + 5)
    for before in (b"", b"odd"):
        pages = mmap.mmap(-1, 4 * mmap.PAGESIZE)
        pages.write(content)
        written = LocalStorage(tmp_path).write("file", [before, memoryview(pages)[: len(content)]])
        assert (tmp_path / "file").read_bytes() == before + content
        assert written.bytes == len(before + content)


def test_a_file_system_without_direct_writes_gets_all_bytes_through_the_page_cache(tmp_path, monkeypatch):
    class Refusing:
        def __getattr__(self, name):
            return getattr(fcntl, name)

        def fcntl(self, fd, command, flags=0):
            if command == fcntl.F_SETFL and flags & os.O_DIRECT:
                raise OSError(errno.EINVAL, "no such thing here")
            return fcntl.fcntl(fd, command, flags)

    monkeypatch.setattr(local, "fcntl", Refusing())
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    pages.write(os.urandom(2 * mmap.PAGESIZE))
    LocalStorage(tmp_path).write("file", [memoryview(pages)])
    assert (tmp_path / "file").read_bytes() == pages[:]


def test_metadata_is_that_of_torch_and_has_its_classes():
    part = PartFile(
        name="a",
        bytes=24,
        checksum="0",
        tensors={"model.w": TensorFacts("float32", 4, (3, 2), (2, 1))},
        items=(PartItem("model.w", (1, 0), (2, 2), 4, 16, 6, "0"),),
    )
    plain = (PlainPartItem(("optimizer", "param_groups", 0, "lr"), 0, 9),)
    found = pickle.loads(encode_metadata((part,), plain, {"model.v": "model.w"}))  # noqa: S301 - our own
    chunk = theirs.ChunkStorageMetadata(torch.Size((1, 0)), torch.Size((2, 2)))
    tensor = theirs.TensorStorageMetadata(
        theirs.TensorProperties(dtype=torch.float32), torch.Size((3, 2)), [chunk]
    )
    name = "optimizer.param_groups.0.lr"
    place = _StorageInfo("a", 4, 16)
    assert found == theirs.Metadata(
        state_dict_metadata={"model.w": tensor, "model.v": tensor, name: theirs.BytesStorageMetadata()},
        planner_data={"model.w": ("model", "w"), "model.v": ("model", "v"), name: plain[0].path},
        storage_data={
            theirs.MetadataIndex("model.w", (1, 0), 0): place,
            theirs.MetadataIndex("model.v", (1, 0), 0): place,
            theirs.MetadataIndex(name): _StorageInfo(PLAIN, 0, 9),
        },
        storage_meta=theirs.StorageMeta(),
        version=CURRENT_DCP_VERSION,
    )
    assert [index.index for index in found.storage_data] == [0, 0, None]
    assert all(getattr(importlib.import_module(module), name) for module, name in NAMES.values())
