"""Files that appear together: a reader sees the old set, the new one or none, never half of one."""

import filecmp
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, TypeAlias

Write: TypeAlias = Callable[[BinaryIO], None]


def publish(folder: Path, files: Mapping[str, Write], *, marker: str, replaced: Iterable[str] = ()) -> None:
    """Write files beside their places, then move them there, the marker last.

    Whoever reads must look for the marker first: where it is, every file of its set is whole. All writing and
    flushing comes before the first move, so a full disk leaves the set before as it was. Files that are
    already there with the same bytes stay untouched, so that repeating is no change at any moment.

    Args:
        folder: on one file system, where the files belong.
        files: name to what writes its bytes.
        marker: one of the names.
        replaced: names of an earlier set that must not outlive it, its marker first.

    Raises:
        OSError: a file could not be written or moved.
    """
    partials = {name: folder / f".{name}.partial" for name in files}
    try:
        for name, write in files.items():
            with partials[name].open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
        _move(folder, partials, marker, [name for name in replaced if name not in files])
    finally:
        for partial in partials.values():
            if partial.is_file():
                partial.unlink()


def _move(folder: Path, partials: Mapping[str, Path], marker: str, replaced: Iterable[str]) -> None:
    changed = {name for name, partial in partials.items() if not _same(partial, folder / name)}
    stale = [name for name in replaced if (folder / name).exists()]
    if not changed and not stale:
        return
    # One file is replaced in one move. More are not, so in between no marker may vouch for them.
    if stale or changed != {marker}:
        (folder / marker).unlink(missing_ok=True)
        changed.add(marker)
    for name in stale:
        (folder / name).unlink()
    for name in sorted(changed, key=lambda name: (name == marker, name)):
        partials[name].replace(folder / name)
    _flush(folder)


def _same(new: Path, old: Path) -> bool:
    return old.is_file() and filecmp.cmp(new, old, shallow=False)


def _flush(folder: Path) -> None:
    """Moves reach the disk with their folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
