"""A disk that another program fills."""

from contextlib import suppress
from pathlib import Path


def fill_disk(where: Path) -> Path:
    """Fill a disk to its last byte; return the file that gives it room again when it is removed."""
    ballast = where / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    return ballast
