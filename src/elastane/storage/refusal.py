"""What storage refused, in our words; the one place where foreign errors become ours."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from elastane.api.errors import ElastaneError, NoSuchFile, StorageError, StorageFull, Unreadable

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def refusals(action: str, where: str) -> Iterator[None]:
    """Turn any error of a file system into a `StorageError`.

    Args:
        action: what is being done, ``write``.
        where: to which file.

    Raises:
        StorageError: or one of its kinds.
    """
    try:
        yield
    except ElastaneError:
        raise
    except OSError as error:
        raise _told(action, where, error) from error
    # fsspec's file systems let through whatever their client libraries raise: botocore, aiohttp, google.
    except Exception as error:
        raise StorageError(
            f"cannot {action} {where}: {type(error).__name__}: {error}",
            do="check the URL, the credentials and whether the storage can be reached",
        ) from error


def _told(action: str, where: str, error: OSError) -> StorageError:
    why = os.strerror(error.errno) if error.errno else f"{type(error).__name__}: {error}"
    what = f"cannot {action} {where}: {why}"
    if isinstance(error, FileNotFoundError):
        return NoSuchFile(what)
    if error.errno in FULL:
        return StorageFull(what, do="free some space there, or keep fewer checkpoints")
    if error.errno == errno.EIO:
        return Unreadable(what, means="the medium failed", do="look at the kernel's log of that disk")
    return StorageError(what, do="check that the storage can be reached and may be written")
