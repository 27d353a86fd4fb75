"""The files of Weights & Biases on this machine: their records, and the processes that write them."""

import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from elastane.common.untrusted_data import open_regular

HEADER_BYTES = 7
BLOCK_BYTES = 32768
RECORD = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def find_record_files(folder: Path, run_id: str) -> list[Path]:
    """Return the files of a run, in the order in which they were begun."""
    return sorted(folder.glob(f"*run-*-{run_id}/run-{run_id}.wandb"))


def read_wandb_records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file; a torn or damaged one costs the rest of its block.

    A file is a header and blocks of a fixed size. A record that does not fit its block is split.

    Raises:
        Malformed: the path does not lead to a regular file.
        OSError: it cannot be read.
    """
    with open_regular(path, follow_links=False) as file:
        skipped = HEADER_BYTES
        parts: list[bytes] = []
        while block := file.read(BLOCK_BYTES):
            for kind, piece in _split_block(block, skipped):
                if kind in (FULL, FIRST):
                    parts = []
                parts.append(piece)
                if kind in (FULL, LAST):
                    yield b"".join(parts)
            skipped = 0


def _split_block(block: bytes, place: int) -> Iterator[tuple[int, bytes]]:
    while place + RECORD.size <= len(block):
        checksum, size_bytes, kind = RECORD.unpack_from(block, place)
        begin = place + RECORD.size
        piece = block[begin : begin + size_bytes]
        if kind not in (FULL, FIRST, MIDDLE, LAST) or len(piece) < size_bytes:
            return
        if crc32(piece, crc32(bytes((kind,)))) != checksum:
            return
        yield kind, piece
        place = begin + size_bytes


def find_writers(folder: Path, run_id: str) -> set[int]:
    """Return the processes that have a file of a run open, as far as this user can see them."""
    inside, found = f"{folder.resolve()}/", set()
    for entry in Path("/proc").glob("[0-9]*"):
        # A process may end meanwhile, and some belong to other users.
        with suppress(OSError):
            for descriptor in (entry / "fd").iterdir():
                with suppress(OSError):
                    name = str(descriptor.readlink())
                    if name.startswith(inside) and name.endswith(f"/run-{run_id}.wandb"):
                        found.add(int(entry.name))
    return found
