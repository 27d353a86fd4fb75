"""Event files of TensorBoard: records in the format of TFRecord, written whole and read up to a torn one."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from elastane.common.untrusted_data import open_regular

LENGTH = struct.Struct("<Q")
CHECKSUM = struct.Struct("<I")
LARGEST_RECORD_BYTES = 16 << 20
SUSPECT_BYTES = 4 << 20
"""The end of a file that a power cut may have damaged. To check all of a long file would take a minute."""


class EventFile:
    """A new event file; it holds only whole records, even if the disk refuses one.

    Args:
        path: of the file, which does not exist yet.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._end = 0

    def append(self, records: list[bytes]) -> None:
        """Append records, all or none.

        Raises:
            OSError: the disk refuses them.
        """
        rest = memoryview(b"".join(map(_frame_record, records)))
        size_bytes = len(rest)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            # A record behind a torn one could not be read.
            os.ftruncate(self._fd, self._end)
            os.lseek(self._fd, self._end, os.SEEK_SET)
            raise
        self._end += size_bytes

    def close(self) -> None:
        """Flush the file to the disk and close it.

        Raises:
            OSError: the disk has not taken it.
        """
        try:
            os.fsync(self._fd)
        finally:
            os.close(self._fd)


def read_event_records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file, up to the first one that is torn or damaged.

    Only the end of a file can be damaged by a kill or a power cut; it is checked byte by byte.

    Raises:
        Malformed: the path does not lead to a regular file.
        OSError: it cannot be read.
    """
    with open_regular(path, follow_links=False) as file:
        suspect = os.fstat(file.fileno()).st_size - SUSPECT_BYTES
        while (record := _read_record(file, checked=file.tell() >= suspect)) is not None:
            yield record


def _read_record(file: BinaryIO, *, checked: bool) -> bytes | None:
    header = file.read(LENGTH.size)
    checksum = file.read(CHECKSUM.size)
    if len(checksum) < CHECKSUM.size or CHECKSUM.unpack(checksum)[0] != masked_crc32c(header):
        return None
    size_bytes = LENGTH.unpack(header)[0]
    if size_bytes > LARGEST_RECORD_BYTES:
        return None
    record = file.read(size_bytes)
    checksum = file.read(CHECKSUM.size)
    if len(checksum) < CHECKSUM.size:
        return None
    if checked and CHECKSUM.unpack(checksum)[0] != masked_crc32c(record):
        return None
    return record


def _frame_record(record: bytes) -> bytes:
    header = LENGTH.pack(len(record))
    return b"".join(
        (header, CHECKSUM.pack(masked_crc32c(header)), record, CHECKSUM.pack(masked_crc32c(record)))
    )
