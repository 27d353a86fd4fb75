"""Atomic replacement of files and directories: a crash or a full disk leaves the old content or the new."""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
"""Errors of file systems that cannot sync a directory; their servers persist names themselves."""

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a disk that is full, past a quota or a limit, or broken."""

PARTIAL_NAME = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.partial", re.DOTALL)


def replace_file(path: Path, content: bytes, *, durable: bool, mode: int = 0o666) -> None:
    """Write or replace a file atomically; see `open_replacement`."""
    with open_replacement(path, durable=durable, mode=mode) as file:
        file.write(content)


@contextmanager
def open_replacement(path: Path, *, durable: bool, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of ``path`` when the block ends without an error.

    A reader sees the old content or the new, never a part. If the block fails or the disk is full, the old
    file stays as it was. Several processes may replace one file at the same time: the last one wins.

    Args:
        path: of the file, in a directory that exists.
        durable: sync the content before the move and the directory after it, so that the new content survives
            a power cut once this returns. Without it a power cut may bring the old content back, and on some
            file systems leaves an empty file.
        mode: permission bits of the new file, less the umask.

    Raises:
        OSError: the file cannot be written.
    """
    # A random name and O_EXCL: no user can prepare a link there, and no two writers share a file.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(descriptor)
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    if durable:
        sync_directory(path.parent)


def create_file(path: Path, content: bytes, *, mode: int = 0o666) -> bool:
    """Write a new file atomically, unless its name is taken; return whether this call has made it.

    A reader sees no file or the whole one. Of several processes, one makes it. The content is on the disk
    when this returns, the name only after `sync_directory`.

    Args:
        path: of the file, in a directory that exists, on a file system with hard links.
        mode: permission bits of the new file, less the umask.

    Raises:
        OSError: the file cannot be written; the error has a second file name if only the link failed. Over
            NFS the file may exist all the same, because the reply to a link can be lost. For the same reason
            the result can be False after a repetition by the kernel: only the content tells.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        try:
            os.link(partial, path, follow_symlinks=False)
        except FileExistsError:
            return False
        return True
    finally:
        with suppress(OSError):
            partial.unlink()


def find_partials(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the partial files in a folder, each with the path of the file that it was to become."""
    for partial in folder.glob(".*.partial"):
        if (match := PARTIAL_NAME.fullmatch(partial.name)) is not None:
            yield partial, partial.with_name(match["name"])


def remove_partials(path: Path) -> None:
    """Remove the partial files that killed processes left; call it only while no process replaces the file.

    Raises:
        OSError: something cannot be removed.
    """
    for partial, replaced in find_partials(path.parent):
        if replaced == path:
            partial.unlink(missing_ok=True)


@contextmanager
def open_new_directory(path: Path, *, durable: bool) -> Iterator[Path]:
    """Yield an empty directory that is moved to ``path`` when the block ends without an error.

    A reader sees the complete directory or none. If the block fails, or the disk is full, nothing is created.

    Args:
        path: of the directory, which may exist only if it is empty; missing parents are created.
        durable: sync all files before the move and the parent after it, so that the directory survives a
            power cut once this returns.

    Raises:
        OSError: the directory cannot be written, or ``path`` is not empty.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        # A killed process may have left it.
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        if durable:
            for entry in (*partial.rglob("*"), partial):
                sync_directory(entry) if entry.is_dir() else sync_file(entry)
        partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if durable:
        sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Flush the content of a file to the disk.

    Raises:
        OSError: the disk has not taken it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Flush the names in a directory to the disk; a file without a name is lost in a power cut.

    Raises:
        OSError: the disk has not taken them.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)
