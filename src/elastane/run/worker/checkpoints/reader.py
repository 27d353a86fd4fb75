"""A reader of a checkpoint's tensors, which verifies them and unpickles nothing."""

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType

import msgspec
import numpy as np
import torch
import xxhash

from elastane.common.errors import Damaged, FileDamage, NoSuchFile, UnreadableData
from elastane.run.checkpoints.rectangles import (
    Box,
    compute_dense_stride,
    cut_rectangles,
    find_tiling_problem,
    sort_dims,
)
from elastane.run.checkpoints.storage.interface import Storage, StoredFile
from elastane.run.nouns.checkpoints import MANIFEST, Manifest, PartItem
from elastane.run.worker.state.tensor_bytes import view_bytes

IN_CACHE_BYTES = 1 << 20
"""The size of a piece to read and hash, so that the hash finds the bytes in the processor's cache."""


class ReadRequest(msgspec.Struct, frozen=True):
    """A request for elements of one tensor.

    Args:
        start: the first element, in the memory order of the part.
        stop: one past the last element.
        into: receives the elements: 1-D, contiguous, of the saved data type, ``stop - start`` elements.
        part: the part of the saved tensor, with its dims in the same order; None: the whole tensor.
    """

    key: str
    start: int
    stop: int
    into: torch.Tensor
    part: Box | None = None


class CheckpointReader(AbstractContextManager["CheckpointReader"]):
    """The tensors of one checkpoint; it verifies the checksum of every element that it returns.

    Each item has a checksum (XXH3-64). With one per file, a reader of few tensors would have to read all.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self._storage, self._manifest = storage, manifest
        self._tensors = manifest.tensors
        self._items: dict[str, list[tuple[str, PartItem]]] = {}
        for part in manifest.parts:
            for item in part.items:
                self._items.setdefault(item.key, []).append((part.name, item))
        self._checked: set[str] = set()
        self._open = ExitStack()
        self._files: dict[str, StoredFile] = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        self._files.clear()

    def read(self, key: str, start: int, stop: int, into: torch.Tensor) -> None:
        """Read elements ``[start, stop)`` of one tensor; see `ReadRequest`.

        Raises:
            Damaged: the elements have changed since the write.
            StorageError: the storage does not respond.
            ValueError: the checkpoint has no such tensor, or ``into`` does not fit it.
        """
        self.read_many([ReadRequest(key, start, stop, into)])

    def read_many(self, requests: Iterable[ReadRequest]) -> None:
        """Read many tensors in the order of the files, several pieces at a time.

        Raises:
            Damaged: data has changed since the write; some tensors may be partly overwritten.
            StorageError: the storage does not respond.
            ValueError: the checkpoint lacks a tensor, or the memory for one does not fit it.
        """
        jobs = [job for request in requests for job in self._plan_jobs(request)]
        jobs.sort(key=lambda job: (job.file, job.item.raw_offset))
        for file in sorted({job.file for job in jobs}):
            self._open_file(file)
        with ThreadPoolExecutor(self._storage.readers, "elastane-restore") as pool:
            futures = [pool.submit(self._read_item, job) for job in jobs]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _plan_jobs(self, request: ReadRequest) -> Iterator["_Job"]:
        facts = self._tensors.get(request.key)
        if facts is None:
            raise ValueError(f"checkpoint {self._manifest.name} has no tensor {request.key}")
        dtype = str(request.into.dtype).removeprefix("torch.")
        if dtype != facts.dtype or request.into.shape != (request.stop - request.start,):
            raise ValueError(
                f"{request.key}: {request.stop - request.start} elements of {facts.dtype} "
                f"do not fit into {dtype} {list(request.into.shape)}"
            )
        order, size = sort_dims(facts.shape, facts.stride), facts.itemsize
        self._check_tiling(request.key)
        if not request.into.numel():
            return
        part = request.part or Box((0,) * len(facts.shape), facts.shape)
        stride = compute_dense_stride(part.sizes, order)
        memory = np.frombuffer(view_bytes(request.into), dtype=np.uint8)
        for rectangle in cut_rectangles(part.sizes, stride, request.start, request.stop):
            wanted = rectangle.move(part.offsets)
            first, last = rectangle.start - request.start, rectangle.stop - request.start
            into = _shape(memory[first * size : last * size], wanted, order, size)
            # A large tensor has many items, and most of them begin or end elsewhere.
            slow, begin, end = (
                (order[0], wanted.offsets[order[0]], wanted.ends[order[0]]) if order else (0, 0, 1)
            )
            for file, item in self._items[request.key]:
                if order and not begin - item.sizes[slow] < item.offsets[slow] < end:
                    continue
                both = wanted.intersect(Box(item.offsets, item.sizes))
                if both is not None:
                    yield _Job(file, item, into, wanted, both, order, size)

    def _check_tiling(self, key: str) -> None:
        """Check that the items of a tensor hold each of its elements once; other elements would be random."""
        if key in self._checked:
            return
        boxes = [Box(item.offsets, item.sizes) for _, item in self._items.get(key, ())]
        if problem := find_tiling_problem(self._tensors[key].shape, boxes):
            raise Damaged(self._manifest.name, (FileDamage(MANIFEST, f"{key}: {problem}"),))
        self._checked.add(key)

    def _open_file(self, name: str) -> StoredFile:
        if name not in self._files:
            try:
                reading = self._storage.open_file(f"{self._manifest.name}/{name}")
                self._files[name] = self._open.enter_context(reading)
            except NoSuchFile as error:
                raise Damaged(self._manifest.name, (FileDamage(name, "is missing"),)) from error
        return self._files[name]

    def _read_item(self, job: "_Job") -> None:
        # The checksum covers a whole item, so reading a part of it needs a buffer for all of it.
        view = job.find_memory()
        checksum, file = xxhash.xxh3_64(), self._files[job.file]
        try:
            for offset in range(0, job.nbytes, IN_CACHE_BYTES):
                piece = view[offset : offset + IN_CACHE_BYTES]
                file.read_into(job.item.raw_offset + offset, piece)
                checksum.update(piece)
        except (NoSuchFile, UnreadableData) as error:
            raise Damaged(self._manifest.name, (FileDamage(job.file, error.what),)) from error
        if checksum.hexdigest() != job.item.checksum:
            where = f"{list(job.item.sizes)} elements at {list(job.item.offsets)} of {job.item.key}"
            damage = FileDamage(job.file, f"{where} do not match their checksum {job.item.checksum}")
            raise Damaged(self._manifest.name, (damage,))
        job.take(view)


class _Job:
    """The reading of one item, or of a part of it, into a rectangle of the memory of a request.

    Args:
        into: the memory of the rectangle, an array of bytes with its dims in the order of the memory.
        wanted: the rectangle.
        both: the elements to read.
        order: the dims, from the slowest to the fastest in memory.
    """

    __slots__ = ("_both", "_into", "_order", "_size", "file", "item", "nbytes")

    def __init__(
        self,
        file: str,
        item: PartItem,
        into: np.ndarray,
        wanted: Box,
        both: Box,
        order: tuple[int, ...],
        size: int,
    ) -> None:
        self.file, self.item, self._order, self._size, self._both = file, item, order, size, both
        self._into = into[_permute(both.slice(wanted.offsets), order)]
        self.nbytes = math.prod(item.sizes) * size

    def find_memory(self) -> memoryview:
        """Return the memory into which to read the item: that of the request if it fits."""
        if self._into.nbytes == self.nbytes and self._into.flags.c_contiguous:
            return memoryview(self._into.reshape(-1))  # type: ignore[arg-type]
        return memoryview(bytearray(self.nbytes))

    def take(self, view: memoryview) -> None:
        """Copy the elements to read from an item that is in memory of its own."""
        elements = np.frombuffer(view, dtype=np.uint8)
        if np.shares_memory(elements, self._into):
            return
        stored = Box(self.item.offsets, self.item.sizes)
        array = _shape(elements, stored, self._order, self._size)
        self._into[...] = array[_permute(self._both.slice(stored.offsets), self._order)]


def _shape(elements: np.ndarray, box: Box, order: tuple[int, ...], size: int) -> np.ndarray:
    """Return the bytes of a box as an array with its dims in the order of the memory, and one for bytes."""
    return elements.reshape(*(box.sizes[dim] for dim in order), size)


def _permute(slices: tuple[slice, ...], order: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slices[dim] for dim in order)
