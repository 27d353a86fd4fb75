"""The metadata of ``torch.distributed.checkpoint``, with which plain PyTorch can read a checkpoint."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from elastane.run.nouns.checkpoints import PLAIN, PartFile, PartItem, PlainPartItem, TensorFacts
from elastane.run.worker.checkpoints.dcp_classes import (
    BytesStorageMetadata,
    CheckpointMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    StorageInfo,
    TensorProperties,
    TensorStorageMetadata,
    pickle_metadata,
)
from elastane.run.worker.checkpoints.tensor_keys import OPTIMIZER_STATE

KeyPath: TypeAlias = tuple[str | int, ...]


def split_key(key: str) -> KeyPath:
    """Return the path of a tensor in the nested state dict, from its flat name.

    Names of parameters contain dots; names of optimizer state do not.
    """
    if key.startswith(OPTIMIZER_STATE):
        name, _, state = key.removeprefix(OPTIMIZER_STATE).rpartition(".")
        return "optimizer", "state", name, state
    first, _, rest = key.partition(".")
    return (first, rest) if rest else (first,)


def encode_values(values: Mapping[KeyPath, Any]) -> tuple[list[bytes], tuple[PlainPartItem, ...]]:
    """Encode plain values as the content of the file `PLAIN`.

    Args:
        values: plain Python values, so that they load with ``weights_only=True``, by path, such as
            ``("optimizer", "param_groups", 0, "lr")``.

    Returns:
        The buffers to write, and the position of each value in them.
    """
    buffers, items, offset = [], [], 0
    for path, value in values.items():
        file = io.BytesIO()
        torch.save(value, file)
        buffers.append(file.getvalue())
        items.append(PlainPartItem(path, offset, len(buffers[-1])))
        offset += len(buffers[-1])
    return buffers, tuple(items)


def encode_metadata(
    parts: Sequence[PartFile],
    plain: Sequence[PlainPartItem] = (),
    aliases: Mapping[str, str] | None = None,
) -> bytes:
    """Return the content of `METADATA`.

    Args:
        parts: the parts of all writers.
        plain: the positions that `encode_values` returned.
        aliases: the second names of tied tensors, each with the key of its data; the metadata lists the data
            twice, and the file has it once.
    """
    facts: dict[str, TensorFacts] = {}
    items: dict[str, list[tuple[str, PartItem]]] = {}
    for part in parts:
        facts |= part.tensors
        for item in part.items:
            items.setdefault(item.key, []).append((part.name, item))
    names = {key: key for key in facts} | dict(aliases or {})
    described: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    stored: dict[MetadataIndex, StorageInfo] = {}
    paths: dict[str, KeyPath] = {}
    for name, key in names.items():
        described[name] = _describe_tensor(facts[key], [item for _, item in items[key]])
        paths[name] = split_key(name)
        for number, (file, item) in enumerate(items[key]):
            index = MetadataIndex(name, torch.Size(item.offsets), number)
            stored[index] = StorageInfo(file, item.offset, item.length)
    for value in plain:
        name = ".".join(map(str, value.path))
        described[name], paths[name] = BytesStorageMetadata(), value.path
        stored[MetadataIndex(name)] = StorageInfo(PLAIN, value.offset, value.length)
    return pickle_metadata(CheckpointMetadata(described, paths, stored))


def _describe_tensor(facts: TensorFacts, items: Sequence[PartItem]) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=getattr(torch, facts.dtype)),
        size=torch.Size(facts.shape),
        chunks=[ChunkStorageMetadata(torch.Size(item.offsets), torch.Size(item.sizes)) for item in items],
    )
