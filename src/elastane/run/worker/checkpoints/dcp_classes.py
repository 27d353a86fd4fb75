"""The classes in the metadata of ``torch.distributed.checkpoint``, as files name them.

Torch keeps metadata readable that its earlier versions have written, so these are classes of a file format.
The import of its own ones takes half as long as that of torch, and a worker that begins would wait for it.
"""

import pickle
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

PROTOCOL = 2
"""It names a class in one piece of text: its module and its name, each in a line."""
VERSION = "1.0.0"


class MemoryFormat(Enum):
    """The memory format of a tensor; checkpoints have one only."""

    TORCH_CONTIGUOUS_FORMAT = 0


@dataclass
class TensorProperties:
    """What a tensor has beside its size; all but ``dtype`` is deprecated."""

    dtype: torch.dtype

    def __getstate__(self) -> tuple[object, ...]:
        """Return the state as torch's class has it."""
        return self.dtype, torch.strided, False, MemoryFormat.TORCH_CONTIGUOUS_FORMAT, False


@dataclass
class ChunkStorageMetadata:
    """The place of a part in its tensor."""

    offsets: torch.Size
    sizes: torch.Size


@dataclass
class TensorStorageMetadata:
    """A tensor."""

    properties: TensorProperties
    size: torch.Size
    chunks: list[ChunkStorageMetadata]


class BytesStorageMetadata:
    """A plain value."""


@dataclass(frozen=True)
class MetadataIndex:
    """The key of a stored part."""

    fqn: str
    offset: torch.Size | None = None
    index: int | None = field(hash=False, compare=False, default=None)


@dataclass
class StorageInfo:
    """The place of a part in the files."""

    relative_path: str
    offset: int
    length: int


@dataclass
class StorageMeta:
    """Names that a checkpoint may have in its storage."""

    checkpoint_id: str | None = None
    save_id: str | None = None
    load_id: str | None = None
    modules: list[str] = field(default_factory=list)


@dataclass
class CheckpointMetadata:
    """The content of the file."""

    state_dict_metadata: dict[str, TensorStorageMetadata | BytesStorageMetadata]
    planner_data: Any
    storage_data: dict[MetadataIndex, StorageInfo]
    storage_meta: StorageMeta = field(default_factory=StorageMeta)
    version: str = VERSION


_METADATA, _FILES = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
NAMES: dict[type, tuple[str, str]] = {
    MemoryFormat: (_METADATA, "_MEM_FORMAT_ENCODING"),
    StorageInfo: (_FILES, "_StorageInfo"),
    CheckpointMetadata: (_METADATA, "Metadata"),
    **{
        kind: (_METADATA, kind.__name__)
        for kind in (
            TensorProperties,
            ChunkStorageMetadata,
            TensorStorageMetadata,
            BytesStorageMetadata,
            MetadataIndex,
            StorageMeta,
        )
    },
}
"""The module and the name of each class in torch."""


def pickle_metadata(metadata: CheckpointMetadata) -> bytes:
    """Return metadata as a file has it: with torch's classes in place of these."""
    content = pickle.dumps(metadata, PROTOCOL)
    for kind, name in NAMES.items():
        content = content.replace(_refer_to(kind.__module__, kind.__name__), _refer_to(*name))
    return content


def _refer_to(module: str, name: str) -> bytes:
    return b"c%b\n%b\n" % (module.encode(), name.encode())
