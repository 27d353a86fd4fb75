"""Receipts: what has become of an attempt to send a message, in a file of its own.

The process that sends outlives a controller that is killed, and writes the outcome into its receipt at once.
So the next controller learns it there and sends nothing twice. The lock of the file tells whether the process
still runs; it is held from before its start to its end.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Collection
from pathlib import Path

from elastane.cluster.controller.notifications.deliveries import Outcome
from elastane.cluster.controller.notifications.sealing import find_folder
from elastane.common.untrusted_data import Decoder, Malformed

LARGEST_BYTES = 4096
NAME = re.compile(r"batch-[0-9a-f]{16}")
BEGUN = b"begun"
"""Content of the receipt of an attempt that may have sent its message."""
NO_TRACE = "the attempt ended without a trace"
_decode: Decoder[Outcome] = Decoder(Outcome, at_most_bytes=LARGEST_BYTES)


def make_receipt(home: Path, batch: str) -> int:
    """Make the receipt of an attempt, and return its descriptor, which holds its lock.

    Raises:
        OSError: the disk is full, for example.
    """
    path = find_folder(home) / batch
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def write_receipt(descriptor: int, content: bytes) -> None:
    """Replace the content of a receipt, on the disk too."""
    os.pwrite(descriptor, content.ljust(LARGEST_BYTES), 0)
    os.fsync(descriptor)


def read_receipt(home: Path, batch: str) -> Outcome | None:
    """Return the outcome of an attempt that has ended; None: it ended before it could send anything.

    Raises:
        FileNotFoundError: it has no receipt in this home.
        BlockingIOError: it still runs.
    """
    path = find_folder(home) / batch
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        content = os.pread(descriptor, LARGEST_BYTES, 0).strip()
    finally:
        os.close(descriptor)
    if not content:
        return None
    try:
        return _decode(content)
    except Malformed:
        return Outcome(result="unknown", why=NO_TRACE)


def remove_receipt(home: Path, batch: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        (find_folder(home) / batch).unlink()


def remove_other_receipts(home: Path, known: Collection[str]) -> None:
    """Remove the receipts of attempts that no message names: a controller was killed before it stored one."""
    for path in find_folder(home).iterdir():
        if NAME.fullmatch(path.name) and path.name not in known:
            with contextlib.suppress(OSError):
                path.unlink()
