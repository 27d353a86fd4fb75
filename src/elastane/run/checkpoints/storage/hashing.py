"""The checksum of a file, computed during its reads or writes.

XXH3-128, not SHA-256: it detects damage, not forgery, at 10 GB/s per core. SHA-256 (1.2 GB/s on the same
machine) made writing a file take 1.6 times as long as writing its raw bytes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import xxhash

from elastane.run.checkpoints.storage.interface import Bytes, StoredFile
from elastane.run.nouns.checkpoints import WrittenFile

BATCH_BYTES = 8 << 20
BATCH_BUFFERS = 256
"""The buffers of one batch: fewer than the 1024 that one writev accepts."""


def cut_batches(buffers: Iterable[Bytes]) -> Iterator[list[memoryview]]:
    """Yield the same bytes in lists of about `BATCH_BYTES`; cut large buffers, but copy none."""
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


def hash_while_writing(
    buffers: Iterable[Bytes], write: Callable[[list[memoryview]], None], finish: Callable[[], None]
) -> WrittenFile:
    """Pass all bytes to ``write``, batch by batch, then call ``finish``; hash them in another thread.

    The hash may lag by any number of bytes, so that neither the disk nor its last fsync waits for it. That
    needs no memory if the buffers are views of memory that stays allocated anyway.
    """
    digest, size = xxhash.xxh3_128(), 0

    def update(batch: list[memoryview]) -> None:
        for piece in batch:
            digest.update(piece)

    with ThreadPoolExecutor(1, "elastane-checksum") as pool:
        try:
            for batch in cut_batches(buffers):
                pool.submit(update, batch)
                write(batch)
                size += sum(map(len, batch))
            finish()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return WrittenFile(size, digest.hexdigest())


def hash_file(file: StoredFile, readers: int) -> WrittenFile:
    """Return the present size and checksum of a file.

    Args:
        readers: the number of parallel reads; the pieces are hashed in order.
    """
    size, digest = file.bytes, xxhash.xxh3_128()

    def read_piece(offset: int) -> bytearray:
        piece = bytearray(min(BATCH_BYTES, size - offset))
        file.read_into(offset, memoryview(piece))
        return piece

    with ThreadPoolExecutor(readers, "elastane-read") as pool:
        ahead: deque[Future[bytearray]] = deque()
        for offset in range(0, size, BATCH_BYTES):
            ahead.append(pool.submit(read_piece, offset))
            if len(ahead) > readers:
                digest.update(ahead.popleft().result())
        for future in ahead:
            digest.update(future.result())
    return WrittenFile(size, digest.hexdigest())
