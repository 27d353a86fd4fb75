"""The cache of a user, for files that are made or copied once: folder, digests, and the lock of the maker."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elastane.common.atomic_file import replace_file


def find_cache(kind: str) -> Path:
    """Return the folder of the user's cache for one kind of files, such as ``tokens``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elastane" / kind


def digest_content(file: Path, cache: Path) -> str:
    """Return the SHA-256 of a file, which is cached until its size or time of change is different."""
    stat = file.stat()
    identity = f"{file.resolve()} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"
    record = cache / f"{hashlib.sha256(identity.encode()).hexdigest()}.content"
    if record.exists():
        return record.read_text()
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    replace_file(record, digest.encode(), durable=False)
    return digest


@contextmanager
def lock_for_one(path: Path) -> Iterator[None]:
    """Hold a lock for one process at a time; the kernel releases the lock of a killed process."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
