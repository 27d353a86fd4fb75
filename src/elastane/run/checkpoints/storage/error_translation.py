"""The translation of the errors of file systems into `StorageError`, which happens only here."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from elastane.common.errors import (
    BadInput,
    ElastaneError,
    NoSuchFile,
    StorageError,
    StorageFull,
    UnreadableData,
)

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def translate_errors(action: str, where: str) -> Iterator[None]:
    """Translate any error of a file system into a `StorageError`.

    Args:
        action: the verb of the operation, such as ``write``.
        where: the file or directory.

    Raises:
        StorageError: the operation failed; may be a subclass.
    """
    try:
        yield
    except ElastaneError:
        raise
    except OSError as error:
        raise _to_storage_error(action, where, error) from error
    # fsspec raises every exception of its client libraries: botocore, aiohttp, google.
    except Exception as error:
        raise StorageError(
            f"cannot {action} {where}: {type(error).__name__}: {error}",
            do="check the URL, the credentials and whether the storage can be reached",
        ) from error


def _to_storage_error(action: str, where: str, error: OSError) -> StorageError:
    why = os.strerror(error.errno) if error.errno else f"{type(error).__name__}: {error}"
    what = f"cannot {action} {where}: {why}"
    if isinstance(error, FileNotFoundError):
        return NoSuchFile(what)
    if error.errno in FULL:
        return StorageFull(what, do="free some space there, or keep fewer checkpoints")
    if error.errno == errno.EIO:
        return UnreadableData(what, means="the disk failed", do="look for the disk in the kernel log: dmesg")
    return StorageError(what, do="check that the storage can be reached and may be written")


def build_missing_file_system_error(url: str, error: Exception) -> BadInput:
    """Return the error for a URL of a file system that is not installed."""
    is_s3 = url.startswith(("s3:", "s3a:"))
    return BadInput(
        f"no file system for {url}: {error}",
        do="pip install 'elastane[s3]'" if is_s3 else "install the fsspec file system of that URL",
    )
