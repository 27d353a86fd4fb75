"""Reading and comparing safetensors files without torch.

The format: eight bytes, the header's length as a little-endian integer; the header, a JSON object from names
to dtype, shape and byte range; then the bytes.
"""

import mmap
import sys
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol

import msgspec

from elastane.common.confined_files import ConfinedDirectory
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.nouns.rundir import RunDir

LENGTH_BYTES = 8
LARGEST_HEADER_BYTES = 100_000_000
"""The limit of other readers of the format."""


class Entry(msgspec.Struct, frozen=True):
    """The header's entry for one tensor; ``data_offsets`` count bytes from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class Index(msgspec.Struct, frozen=True):
    """``model.safetensors.index.json``: the file that contains each tensor."""

    weight_map: dict[str, str]


_decode_entry = Decoder[Entry](Entry)
_decode_index = Decoder[Index](Index)
_decode_header = Decoder[dict[str, msgspec.Raw]](dict[str, msgspec.Raw], at_most_bytes=LARGEST_HEADER_BYTES)


class TensorDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How one tensor differs.

    Args:
        why: the first difference: missing in one file, dtype, shape, or values.
        elements: how many elements differ; None: not comparable, or numpy is missing.
        max_abs: largest absolute difference; None: as for ``elements``, or it is not a number.
    """

    name: str
    why: str
    elements: int | None = None
    max_abs: float | None = None


class AnyTensors(Protocol):
    """Tensors by name, with their bytes."""

    @property
    def entries(self) -> Mapping[str, Entry]: ...

    def get_bytes(self, name: str) -> memoryview: ...


class TensorFile:
    """A safetensors file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        """Map the file and read its header.

        Raises:
            BadInput: it is not a complete safetensors file.
        """
        try:
            with ConfinedDirectory(path.parent).open(path) as file:
                # Map the whole file: the kernel reads nothing before the comparison needs it.
                self._bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            end = LENGTH_BYTES + int.from_bytes(self._bytes[:LENGTH_BYTES], "little")
            header = _decode_header(bytes(self._bytes[LENGTH_BYTES : min(end, LARGEST_HEADER_BYTES)]))
            header.pop("__metadata__", None)
            self.entries = {name: _decode_entry(bytes(raw)) for name, raw in header.items()}
        except (OSError, ValueError) as error:
            raise BadInput(f"{path} is not a safetensors file: {error}") from error
        self._data = self._bytes[end:]
        size_bytes = max((entry.data_offsets[1] for entry in self.entries.values()), default=0)
        if size_bytes > len(self._data):
            raise BadInput(f"{path} is cut off: it holds {len(self._data)} of {size_bytes} bytes of tensors")

    def get_bytes(self, name: str) -> memoryview:
        start, stop = self.entries[name].data_offsets
        return self._data[start:stop]


class ModelTensors:
    """The tensors of a finished model, in one file or in shards.

    Args:
        marker: ``model.safetensors``, or the index of the shards beside it.

    Raises:
        BadInput: a file is missing or damaged.
    """

    def __init__(self, marker: Path) -> None:
        if marker.suffix == ".json":
            try:
                weights = _decode_index(ConfinedDirectory(marker.parent).read(marker)).weight_map
                paths = [marker.with_name(name) for name in dict.fromkeys(weights.values())]
            except (OSError, ValueError) as error:
                raise BadInput(f"{marker} is damaged: {error}") from error
            files = [TensorFile(path) for path in paths]
        else:
            files = [TensorFile(marker)]
        self._files = {name: file for file in files for name in file.entries}
        self.entries = {name: file.entries[name] for name, file in self._files.items()}

    def get_bytes(self, name: str) -> memoryview:
        return self._files[name].get_bytes(name)


def find_finished_model(run_dir: RunDir) -> Path | None:
    """Return the file that marks a finished model as complete: its weights, or the index of their shards."""
    return next(
        (path for path in (run_dir.model_files.weights, run_dir.model_files.weight_index) if path.is_file()),
        None,
    )


def list_shards(run_dir: RunDir) -> list[Path]:
    """Return the files with shards of a finished model, sorted; none if the directory cannot be trusted."""
    try:
        names = run_dir.files.list_files(run_dir.root)
    except Malformed:
        return []
    return [run_dir.root / name for name in names if fnmatch(name, "model-*.safetensors")]


def compare_tensors(first: AnyTensors, second: AnyTensors) -> tuple[TensorDifference, ...]:
    """Return every tensor that is not the same bit for bit, in the order of their names."""
    names = sorted(first.entries.keys() | second.entries.keys())
    differences = (compare_tensor(name, first, second) for name in names)
    return tuple(difference for difference in differences if difference is not None)


def compare_tensor(name: str, first: AnyTensors, second: AnyTensors) -> TensorDifference | None:
    a, b = first.entries.get(name), second.entries.get(name)
    if a is None or b is None:
        return TensorDifference(name=name, why="only in the second" if a is None else "only in the first")
    if a.dtype != b.dtype:
        return TensorDifference(name=name, why=f"dtype {a.dtype} against {b.dtype}")
    if a.shape != b.shape:
        return TensorDifference(name=name, why=f"shape {list(a.shape)} against {list(b.shape)}")
    raw_a, raw_b = first.get_bytes(name), second.get_bytes(name)
    if raw_a == raw_b:
        return None
    elements, max_abs = measure_distance(a.dtype, raw_a, raw_b)
    return TensorDifference(name=name, why="values", elements=elements, max_abs=max_abs)


NUMPY_NAMES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4",
    "I64": "<i8", "U64": "<u8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2",
}  # fmt: skip


def measure_distance(dtype: str, raw_a: memoryview, raw_b: memoryview) -> tuple[int | None, float | None]:
    """Return how many elements differ and by how much at most; None without numpy or a known dtype."""
    try:
        import numpy as np
    except ModuleNotFoundError:
        return None, None
    if dtype not in NUMPY_NAMES or sys.byteorder != "little":
        return None, None
    a, b = (np.frombuffer(raw, dtype=NUMPY_NAMES[dtype]) for raw in (raw_a, raw_b))
    # Compare bits: -0.0 differs from 0.0, and a NaN equals itself.
    width = f"V{a.dtype.itemsize}"
    elements = int(np.count_nonzero(a.view(width) != b.view(width)))
    if dtype == "BF16":
        # bfloat16 is the upper half of a float32.
        a, b = ((half.astype("<u4") << 16).view("<f4") for half in (a, b))
    with np.errstate(all="ignore"):
        distance = float(np.max(np.abs(a.astype("f8") - b.astype("f8"))))
    return elements, distance if np.isfinite(distance) else None
