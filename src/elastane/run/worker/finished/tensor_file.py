"""The writer of safetensors files: it writes one tensor at a time, and equal tensors give equal bytes.

The library's own writer needs all tensors in memory at once, refuses views of one arena that overlap, and
writes the metadata in an order that changes from process to process. The format is eight bytes with the
header's length, a JSON header, and the tensors: https://github.com/huggingface/safetensors#format. The
library reads the files.
"""

import json
from collections.abc import Iterable, Mapping
from typing import BinaryIO

import torch

from elastane.common.errors import BadInput
from elastane.run.worker.finished.named_tensors import NamedTensors
from elastane.run.worker.state.tensor_bytes import raw_bytes

DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16",
    torch.uint32: "U32", torch.int32: "I32", torch.uint64: "U64", torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64",
}  # fmt: skip
ALIGNED_BYTES = 8


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
