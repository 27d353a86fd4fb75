"""The safetensors files of a finished model, and their shards."""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import BinaryIO

import torch

from elastane.common.errors import BadInput
from elastane.run.worker.finished.file_set import WriteFile
from elastane.run.worker.finished.named_tensors import NamedTensors
from elastane.run.worker.state.tensor_bytes import raw_bytes

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16",
    torch.uint32: "U32", torch.int32: "I32", torch.uint64: "U64", torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64",
}  # fmt: skip
ALIGNED_BYTES = 8


def cut_shards(sizes_bytes: Mapping[str, int], most_bytes: int) -> list[list[str]]:
    """Cut tensors, in order, into shards of at most ``most_bytes``; a larger tensor gets its own shard.

    Without tensors the result is one empty shard.
    """
    shards: list[list[str]] = [[]]
    filled_bytes = 0
    for name, size_bytes in sizes_bytes.items():
        if shards[-1] and filled_bytes + size_bytes > most_bytes:
            shards.append([])
            filled_bytes = 0
        shards[-1].append(name)
        filled_bytes += size_bytes
    return shards


def plan_model_files(
    tensors: NamedTensors, most_bytes: int, metadata: Mapping[str, str] | None = None
) -> tuple[dict[str, WriteFile], str]:
    """Return the function that writes each file of the model, by name, and the name of the marker.

    Args:
        most_bytes: the limit of weights, in bytes, in one file.
        metadata: free text for the header of each file.
    """
    write = partial(write_model_file, tensors, metadata=metadata or {})
    sizes = {name: described.size_bytes for name, described in tensors.descriptions.items()}
    shards = cut_shards(sizes, most_bytes)
    if len(shards) == 1:
        return {SINGLE_FILE: partial(write, shards[0])}, SINGLE_FILE
    names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    files: dict[str, WriteFile] = {
        file: partial(write, shard) for file, shard in zip(names, shards, strict=True)
    }
    index = {
        "metadata": {"total_size": sum(sizes.values())},
        "weight_map": {name: file for file, shard in zip(names, shards, strict=True) for name in shard},
    }
    text = json.dumps(index, indent=2, ensure_ascii=False).encode() + b"\n"
    return {**files, INDEX: lambda file: _write_bytes(text, file)}, INDEX


def write_model_file(
    tensors: NamedTensors, names: Iterable[str], file: BinaryIO, metadata: Mapping[str, str]
) -> None:
    """Write some of a model's tensors; the header maps their other names to the stored names."""
    names = list(names)
    stored = set(names)
    aliases = {name: first for name, first in tensors.aliases.items() if first in stored}
    # transformers refuses a file that does not name the library of its tensors.
    write_tensors(file, tensors, names, {"format": "pt", **metadata, **aliases})


def _write_bytes(text: bytes, file: BinaryIO) -> None:
    file.write(text)


def list_replaced_files(names: Iterable[str]) -> list[str]:
    """Return the names of the model files among these, markers first."""
    markers = {SINGLE_FILE, INDEX}
    shards = (name for name in names if name.startswith("model-") and name.endswith(".safetensors"))
    return [*sorted(markers), *sorted(shards)]


# -- the writer of safetensors files: it writes one tensor at a time, and equal tensors give equal bytes -
#
# The library's own writer needs all tensors in memory at once, refuses views of one arena that overlap,
# and writes the metadata in an order that changes from process to process. The format is eight bytes with
# the header's length, a JSON header, and the tensors: https://github.com/huggingface/safetensors#format.
# The library reads the files.


def write_tensors(
    file: BinaryIO, tensors: NamedTensors, names: Iterable[str], metadata: Mapping[str, str]
) -> None:
    """Write some of the tensors as one safetensors file.

    Args:
        file: an empty file, open for writing.
        tensors: the source of the tensors.
        names: the names of the tensors to write.
        metadata: free text, by name.

    Raises:
        BadInput: safetensors has no name for the data type of a tensor.
        OSError: the file cannot be written.
    """
    # Widest first, as the library does: then every tensor is aligned and can be mapped in place.
    order = sorted(names, key=lambda name: (-tensors.descriptions[name].dtype.itemsize, name))
    check_types(tensors, order)
    file.write(_encode_header(tensors, order, metadata))
    file.writelines(raw_bytes(tensors.read_tensor(name).cpu()) for name in order)


def check_types(tensors: NamedTensors, names: Iterable[str]) -> None:
    """Check that all tensors can be written.

    Raises:
        BadInput: safetensors has no name for the data type of a tensor.
    """
    for name in names:
        if tensors.descriptions[name].dtype not in DTYPES:
            raise BadInput(
                f"{name} has the data type {tensors.descriptions[name].dtype}",
                means="safetensors has no name for it, so the model could not be written",
                do="keep it in another data type, or out of the state dict (persistent=False)",
            )


def _encode_header(tensors: NamedTensors, order: list[str], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    offset = 0
    for name in order:
        described = tensors.descriptions[name]
        end = offset + described.size_bytes
        header[name] = {
            "dtype": DTYPES[described.dtype],
            "shape": described.shape,
            "data_offsets": (offset, end),
        }
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // ALIGNED_BYTES) * ALIGNED_BYTES)
    return len(text).to_bytes(8, "little") + text
