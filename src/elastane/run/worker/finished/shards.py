"""A model as one safetensors file, or as shards and their index, with the names of ``transformers``."""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import BinaryIO

from elastane.run.worker.finished.file_set import WriteFile
from elastane.run.worker.finished.named_tensors import NamedTensors
from elastane.run.worker.finished.tensor_file import write_tensors

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"


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
