"""Folders that all workers of a run want to write with the same content, and that one of them writes.

A worker takes a lock, which the kernel releases when the worker dies. If another worker has written the
folder already, there is nothing left to do. So the folder exists before any worker goes on, even if some die.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".elastane.lock"
STAMP = ".elastane-save"
POLL_S = 0.01

_held: set[Path] = set()


@contextmanager
def hold_lock(folder: Path, beat: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a folder of this machine, which is made; ``beat`` is called while others hold it."""
    folder.mkdir(parents=True, exist_ok=True)
    held = folder.resolve()
    if held in _held:
        yield
        return
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                beat()
                time.sleep(POLL_S)
            else:
                break
        _held.add(held)
        yield
    finally:
        _held.discard(held)
        os.close(descriptor)


def is_written(folder: Path, stamp: str) -> bool:
    """Return whether another worker has written the folder with this stamp; call it with the lock held."""
    try:
        return (folder / STAMP).read_text() == stamp
    except (OSError, UnicodeDecodeError):
        return False


def write_folder(folder: Path, stamp: str, write: Callable[[Path], None]) -> None:
    """Write a folder under another name, and move it to its place; one that is there is removed.

    The lock of its parent is held; ``stamp`` identifies the content.
    """
    scratch = _make_scratch(folder)
    write(scratch)
    (scratch / STAMP).write_text(stamp)
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    scratch.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def write_files(folder: Path, stamp: str, write: Callable[[Path], None]) -> None:
    """Write files under another name, and move each to its place in a folder that may have others.

    The lock of the folder is held; ``stamp`` identifies the content.
    """
    scratch = _make_scratch(folder / "files")
    write(scratch)
    (scratch / STAMP).write_text(stamp)
    for path in sorted(scratch.iterdir(), key=lambda path: path.name == STAMP):
        target = folder / path.name
        if target.is_dir() and path.is_dir():
            shutil.rmtree(target)
        path.replace(target)
    scratch.rmdir()


def _make_scratch(folder: Path) -> Path:
    """Return an empty folder for unfinished files; a dead worker may have left one."""
    scratch = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    return scratch
