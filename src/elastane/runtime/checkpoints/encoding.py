"""One part file: items that `torch.load` reads, around bytes that are written from where they lie."""

import functools
import io
from collections.abc import Iterator, Sequence

import msgspec
import torch
import xxhash
from torch.utils.serialization import config

from elastane.api.checkpoints import Item, PartFile, TensorFacts, Written
from elastane.protocol.rectangles import Rectangle, dense_stride, memory_order, rectangles
from elastane.runtime.checkpoints.entry import Entry


class Envelope(msgspec.Struct, frozen=True):
    """What `torch.save` writes before and after the elements of a tensor."""

    before: bytes
    after: bytes


class _Split:
    """A file that keeps what is written to it, except the elements of one tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._address, self._nbytes = tensor.data_ptr(), tensor.nbytes
        self.before, self.after = io.BytesIO(), io.BytesIO()
        self._now = self.before
        self.found = tensor.nbytes == 0

    def write(self, data: memoryview) -> int:
        if not self.found and len(data) == self._nbytes and _address(data) == self._address:
            self._now, self.found = self.after, True
            return len(data)
        return self._now.write(data)

    def flush(self) -> None:
        return


def _address(data: memoryview) -> int:
    return int(torch.frombuffer(data, dtype=torch.uint8).data_ptr())


@functools.lru_cache(maxsize=4096)
def envelope(dtype: torch.dtype, sizes: tuple[int, ...], stride: tuple[int, ...]) -> Envelope:
    """The envelope of any tensor of this type and shape.

    Made by `torch.save` itself from a tensor whose memory is never touched. Without the CRC-32 of the zip
    format, which torch does not check, it does not depend on the elements.
    """
    tensor = torch.empty_strided(sizes, stride, dtype=dtype)
    file = _Split(tensor)
    with config.patch("save.compute_crc32", False):  # type: ignore[attr-defined]
        torch.save(tensor, file)  # type: ignore[arg-type]
    if not file.found:
        raise AssertionError("torch.save did not write the tensor's memory in one piece")
    return Envelope(file.before.getvalue(), file.after.getvalue())


class Encoded:
    """A part file as a stream of buffers; nothing of the state is copied.

    Args:
        name: of the file.
        entries: in the order they shall have in the file.

    Attributes:
        bytes: size the file will have.
    """

    def __init__(self, name: str, entries: Sequence[Entry]) -> None:
        self.name = name
        self.tensors: dict[str, TensorFacts] = {}
        self._pieces: list[tuple[Entry, Rectangle, Envelope]] = []
        self._checksums: list[str] = []
        self.bytes = 0
        for entry in entries:
            self._check(entry)
            dtype = entry.data.dtype
            self.tensors[entry.key] = TensorFacts(
                str(dtype).removeprefix("torch."), dtype.itemsize, entry.shape, entry.stride
            )
            order = memory_order(entry.shape, entry.stride)
            for rectangle in rectangles(entry.shape, entry.stride, entry.start, entry.stop):
                around = envelope(dtype, rectangle.sizes, dense_stride(rectangle.sizes, order))
                self._pieces.append((entry, rectangle, around))
                elements = rectangle.stop - rectangle.start
                self.bytes += len(around.before) + elements * dtype.itemsize + len(around.after)

    @staticmethod
    def _check(entry: Entry) -> None:
        if entry.data.shape != (entry.stop - entry.start,) or entry.data.device.type != "cpu":
            raise ValueError(
                f"{entry.key}: {entry.stop - entry.start} elements on the CPU are wanted, "
                f"given are {list(entry.data.shape)} on {entry.data.device}"
            )

    def __iter__(self) -> Iterator[bytes | memoryview]:
        """Every byte of the file. Entries must not change before the last one has been taken."""
        self._checksums = []
        for entry, rectangle, around in self._pieces:
            raw = raw_view(entry.data[rectangle.start - entry.start : rectangle.stop - entry.start])
            self._checksums.append(xxhash.xxh3_64_hexdigest(raw))
            yield around.before
            yield raw
            yield around.after

    def part(self, written: Written) -> PartFile:
        """What to report once the file has been written.

        Args:
            written: as the place told.

        Raises:
            ValueError: it is not this file that was written.
        """
        if written.bytes != self.bytes or len(self._checksums) != len(self._pieces):
            raise ValueError(f"{self.name} has {self.bytes} bytes, and {written.bytes} were written")
        return PartFile(
            name=self.name,
            bytes=written.bytes,
            sha256=written.sha256,
            tensors=self.tensors,
            items=tuple(self._items()),
        )

    def _items(self) -> Iterator[Item]:
        offset = 0
        for (entry, rectangle, around), checksum in zip(self._pieces, self._checksums, strict=True):
            raw_bytes = (rectangle.stop - rectangle.start) * entry.data.dtype.itemsize
            length = len(around.before) + raw_bytes + len(around.after)
            yield Item(
                key=entry.key,
                start=rectangle.start,
                stop=rectangle.stop,
                offsets=rectangle.offsets,
                sizes=rectangle.sizes,
                offset=offset,
                length=length,
                raw_offset=offset + len(around.before),
                checksum=checksum,
            )
            offset += length


def raw_view(flat: torch.Tensor) -> memoryview:
    """The bytes of a 1-D contiguous tensor, where they lie.

    Raises:
        ValueError: it has gaps.
    """
    if not flat.is_contiguous():
        raise ValueError("a tensor with gaps has no bytes of its own")
    if not flat.numel():
        return memoryview(b"")
    return memoryview(flat.detach().view(torch.uint8).numpy())  # type: ignore[arg-type]
