"""The encoding of a part file: items that `torch.load` can read, written without a copy of the elements."""

import functools
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import numpy as np
import torch
import xxhash
from torch.utils.serialization import config

from elastane.run.checkpoints.rectangles import (
    Box,
    Rectangle,
    compute_dense_stride,
    cut_rectangles,
    sort_dims,
)
from elastane.run.nouns.checkpoints import PartFile, PartItem, TensorFacts, WrittenFile
from elastane.run.worker.state.tensor_bytes import view_bytes

# -- the bytes that ``torch.save`` writes around the elements of a tensor --------------------------------


class Envelope(msgspec.Struct, frozen=True):
    """The bytes that `torch.save` writes before and after the elements of a tensor."""

    before: bytes
    after: bytes


class _EnvelopeRecorder:
    """A file that records the bytes written to it, except the elements of one tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._address, self._nbytes = tensor.data_ptr(), tensor.nbytes
        self.before, self.after = io.BytesIO(), io.BytesIO()
        self._target = self.before
        self.has_elements = tensor.nbytes == 0

    def write(self, data: memoryview) -> int:
        if not self.has_elements and len(data) == self._nbytes and _find_address(data) == self._address:
            self._target, self.has_elements = self.after, True
            return len(data)
        return self._target.write(data)

    def flush(self) -> None:
        return


def _find_address(data: memoryview) -> int:
    return int(np.frombuffer(data, dtype=np.uint8).ctypes.data)


@functools.lru_cache(maxsize=4096)
def make_envelope(dtype: torch.dtype, sizes: tuple[int, ...], stride: tuple[int, ...]) -> Envelope:
    """Return the envelope of every tensor of this type and shape.

    `torch.save` writes it around a tensor with untouched memory. The envelope does not depend on the
    elements, because it lacks the CRC-32 of the zip format, which torch does not check.
    """
    tensor = torch.empty_strided(sizes, stride, dtype=dtype)
    file = _EnvelopeRecorder(tensor)
    with config.patch("save.compute_crc32", False):  # type: ignore[attr-defined]
        torch.save(tensor, file)  # type: ignore[arg-type]
    if not file.has_elements:
        raise AssertionError("torch.save did not write the tensor's memory in one piece")
    return Envelope(file.before.getvalue(), file.after.getvalue())


class TensorSlice(msgspec.Struct, frozen=True):
    """Elements ``[start, stop)`` of a part of one tensor, in the memory order of the part.

    Args:
        key: the name in the checkpoint: ``model.<name>`` or ``optimizer.state.<name>.exp_avg``.
        shape: the shape of the whole tensor.
        stride: the strides of the whole tensor in memory; dense, perhaps permuted. The part has its dims in
            the same order.
        data: the elements, 1-D and contiguous, on the CPU.
        part: the part; None: it is the whole tensor.
    """

    key: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int
    stop: int
    data: torch.Tensor
    part: Box | None = None

    def cut(self) -> tuple[Rectangle, ...]:
        """Return the rectangles of the whole tensor that these elements are, in their order."""
        if self.part is None:
            return cut_rectangles(self.shape, self.stride, self.start, self.stop)
        corner, sizes = self.part.offsets, self.part.sizes
        stride = compute_dense_stride(sizes, sort_dims(self.shape, self.stride))
        return tuple(
            msgspec.structs.replace(rectangle, offsets=rectangle.move(corner).offsets)
            for rectangle in cut_rectangles(sizes, stride, self.start, self.stop)
        )


def slice_whole(key: str, tensor: torch.Tensor) -> TensorSlice:
    """Return all of a small tensor as one slice; a copy if it is not dense."""
    dense = tensor.detach()
    shape = tuple(dense.shape)
    if dense.is_contiguous():
        flat = dense.reshape(-1)
    else:
        # Channels last and similar formats are dense too, so their memory needs no copy.
        order = sort_dims(shape, dense.stride())
        dense = dense.permute(order).contiguous().permute(_invert(order))
        flat = dense.permute(order).reshape(-1)
    return TensorSlice(key, shape, tuple(dense.stride()), 0, flat.numel(), flat)


class _Piece(msgspec.Struct, frozen=True):
    """A rectangle of a tensor in the file, with a 1-D view of its elements."""

    key: str
    rectangle: Rectangle
    envelope: Envelope
    elements: torch.Tensor
    offset: int

    @property
    def raw_offset(self) -> int:
        return self.offset + len(self.envelope.before)

    @property
    def stop(self) -> int:
        return self.raw_offset + self.elements.nbytes + len(self.envelope.after)


class EncodedPart:
    """A part file as a stream of buffers: views of the state, or a copy laid out as the file.

    Args:
        slices: the slices, in the order of the file.

    Attributes:
        bytes: the size of the file, once written.
    """

    def __init__(self, name: str, slices: Sequence[TensorSlice]) -> None:
        self.name = name
        self.tensors: dict[str, TensorFacts] = {}
        self._pieces: list[_Piece] = []
        self._checksums: list[Future[str]] = []
        self._image: memoryview | None = None
        self.bytes = 0
        for entry in slices:
            self._check(entry)
            dtype = entry.data.dtype
            self.tensors[entry.key] = TensorFacts(
                str(dtype).removeprefix("torch."), dtype.itemsize, entry.shape, entry.stride
            )
            order = sort_dims(entry.shape, entry.stride)
            for rectangle in entry.cut():
                envelope = make_envelope(dtype, rectangle.sizes, compute_dense_stride(rectangle.sizes, order))
                elements = entry.data[rectangle.start - entry.start : rectangle.stop - entry.start]
                piece = _Piece(entry.key, rectangle, envelope, elements, self.bytes)
                self._pieces.append(piece)
                self.bytes = piece.stop

    @staticmethod
    def _check(entry: TensorSlice) -> None:
        if entry.data.shape != (entry.stop - entry.start,):
            raise ValueError(
                f"{entry.key}: the slice has {entry.stop - entry.start} elements, "
                f"and its data has the shape {list(entry.data.shape)}"
            )

    def lay_out(self, memory: torch.Tensor) -> None:
        """Copy the whole file into memory, from which it is written; then the state may change.

        Args:
            memory: at least `bytes` bytes on the CPU, which must not change before `describe` returns.
        """
        image, pieces = view_bytes(memory[: self.bytes]), []
        for piece in self._pieces:
            start, stop = piece.raw_offset, piece.raw_offset + piece.elements.nbytes
            copy = memory[start:stop]
            _copy_bytes(copy, piece.elements.detach().view(torch.uint8))
            image[piece.offset : start] = piece.envelope.before
            image[stop : piece.stop] = piece.envelope.after
            pieces.append(msgspec.structs.replace(piece, elements=copy))
        self._image, self._pieces = image, pieces

    def __iter__(self) -> Iterator[bytes | memoryview]:
        """Yield every byte of the file; the state, or the copy, must not change until `describe` returns."""
        self._checksums = []
        # Hash in another thread: at 10 GB/s it would add a seventh to the time of a fast disk.
        with ThreadPoolExecutor(1, "elastane-xxh3") as pool:
            for piece in self._pieces:
                raw = view_bytes(piece.elements)
                self._checksums.append(pool.submit(xxhash.xxh3_64_hexdigest, raw))
                if self._image is None:
                    yield piece.envelope.before
                    yield raw
                    yield piece.envelope.after
            if self._image is not None:
                yield self._image

    def describe(self, written: WrittenFile) -> PartFile:
        """Return the description of the written file for the manifest.

        Args:
            written: the size and checksum that the storage returned.

        Raises:
            ValueError: the storage wrote another file.
        """
        if written.bytes != self.bytes or len(self._checksums) != len(self._pieces):
            raise ValueError(f"{self.name} has {self.bytes} bytes, and {written.bytes} were written")
        return PartFile(
            name=self.name,
            bytes=written.bytes,
            checksum=written.checksum,
            tensors=self.tensors,
            items=tuple(self._list_items()),
        )

    def _list_items(self) -> Iterator[PartItem]:
        for piece, checksum in zip(self._pieces, self._checksums, strict=True):
            yield PartItem(
                key=piece.key,
                offsets=piece.rectangle.offsets,
                sizes=piece.rectangle.sizes,
                offset=piece.offset,
                length=piece.stop - piece.offset,
                raw_offset=piece.raw_offset,
                checksum=checksum.result(),
            )


def _copy_bytes(into: torch.Tensor, elements: torch.Tensor) -> None:
    if elements.device.type == "cpu":
        # Elements may start at any byte; torch's copy then takes 1.4 times as long (600 MB, one core).
        np.copyto(into.numpy(), elements.numpy())
    else:
        into.copy_(elements)


def _invert(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=lambda dim: order[dim])
