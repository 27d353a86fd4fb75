"""SHA-256 beside the reading or writing: hashlib lets go of the interpreter, so a second core does it."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from elastane.api.checkpoints import Written
from elastane.storage.place import Bytes, Reading

BATCH_BYTES = 8 << 20
BATCH_BUFFERS = 256
"""Below the 1024 buffers that one writev takes."""
BEHIND = 2
"""Batches the hash may lag behind; they stay in memory that long."""


def batches(buffers: Iterable[Bytes]) -> Iterator[list[memoryview]]:
    """The same bytes in lists of about `BATCH_BYTES`, large buffers cut, none copied."""
    batch: list[memoryview] = []
    size = 0
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        while view:
            piece = view[: BATCH_BYTES - size]
            batch.append(piece)
            size += len(piece)
            view = view[len(piece) :]
            if size == BATCH_BYTES or len(batch) == BATCH_BUFFERS:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def hashed(buffers: Iterable[Bytes], write: Callable[[list[memoryview]], None]) -> Written:
    """Hand all bytes to ``write``, batch by batch, and hash them meanwhile."""
    digest, size = hashlib.sha256(), 0

    def update(batch: list[memoryview]) -> None:
        for piece in batch:
            digest.update(piece)

    with ThreadPoolExecutor(1, "elastane-sha256") as pool:
        behind: deque[Future[None]] = deque()
        for batch in batches(buffers):
            behind.append(pool.submit(update, batch))
            write(batch)
            size += sum(map(len, batch))
            if len(behind) > BEHIND:
                behind.popleft().result()
    return Written(size, digest.hexdigest())


def digest_of(file: Reading, readers: int) -> Written:
    """Size and SHA-256 of a file as it is now.

    Args:
        file: open.
        readers: pieces to read at once; they are hashed in order.
    """
    size, digest = file.bytes, hashlib.sha256()

    def piece_at(offset: int) -> bytearray:
        piece = bytearray(min(BATCH_BYTES, size - offset))
        file.into(offset, memoryview(piece))
        return piece

    with ThreadPoolExecutor(readers, "elastane-read") as pool:
        ahead: deque[Future[bytearray]] = deque()
        for offset in range(0, size, BATCH_BYTES):
            ahead.append(pool.submit(piece_at, offset))
            if len(ahead) > readers:
                digest.update(ahead.popleft().result())
        for future in ahead:
            digest.update(future.result())
    return Written(size, digest.hexdigest())
