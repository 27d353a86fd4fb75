"""A reader of a checkpoint's tensors, which verifies them and unpickles nothing."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType

import msgspec
import torch
import xxhash

from elastane.common.errors import Damaged, FileDamage, NoSuchFile, UnreadableData
from elastane.run.checkpoints.storage.interface import Storage, StoredFile
from elastane.run.nouns.checkpoints import Manifest, PartItem
from elastane.run.worker.state.tensor_bytes import view_bytes

IN_CACHE_BYTES = 1 << 20
"""The size of a piece to read and hash, so that the hash finds the bytes in the processor's cache."""


class ReadRequest(msgspec.Struct, frozen=True):
    """A request for elements of one tensor.

    Args:
        start: the first element, in the memory order of the saved tensor.
        stop: one past the last element.
        into: receives the elements: 1-D, contiguous, of the saved data type, ``stop - start`` elements.
    """

    key: str
    start: int
    stop: int
    into: torch.Tensor


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
        for items in self._items.values():
            items.sort(key=lambda found: found[1].start)
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
        view = view_bytes(request.into)
        position = request.start
        for file, item in self._items.get(request.key, ()):
            start, stop = max(item.start, request.start), min(item.stop, request.stop)
            if start >= stop:
                continue
            if start != position:
                break
            position = stop
            size = facts.itemsize
            part = view[(start - request.start) * size : (stop - request.start) * size]
            skip = (start - item.start) * size
            yield _Job(file, item, part, skip, (item.stop - item.start) * size)
        if position != request.stop:
            raise ValueError(f"{request.key}: checkpoint {self._manifest.name} lacks element {position}")

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
        is_partial = len(job.view) != job.nbytes
        view = memoryview(bytearray(job.nbytes)) if is_partial else job.view
        checksum, file = xxhash.xxh3_64(), self._files[job.file]
        try:
            for offset in range(0, job.nbytes, IN_CACHE_BYTES):
                piece = view[offset : offset + IN_CACHE_BYTES]
                file.read_into(job.item.raw_offset + offset, piece)
                checksum.update(piece)
        except (NoSuchFile, UnreadableData) as error:
            raise Damaged(self._manifest.name, (FileDamage(job.file, error.what),)) from error
        if checksum.hexdigest() != job.item.checksum:
            where = f"elements {job.item.start} to {job.item.stop} of {job.item.key}"
            damage = FileDamage(job.file, f"{where} do not match their checksum {job.item.checksum}")
            raise Damaged(self._manifest.name, (damage,))
        if is_partial:
            job.view[:] = view[job.skip : job.skip + len(job.view)]


class _Job:
    """The reading of one item, or of a part of it."""

    __slots__ = ("file", "item", "nbytes", "skip", "view")

    def __init__(self, file: str, item: PartItem, view: memoryview, skip: int, nbytes: int) -> None:
        self.file, self.item, self.view, self.skip, self.nbytes = file, item, view, skip, nbytes
