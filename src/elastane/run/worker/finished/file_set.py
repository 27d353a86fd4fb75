"""Sets of files that change as one: a reader sees the old set, the new set or none, never a part."""

import filecmp
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

import xxhash

from elastane.common.atomic_file import sync_directory, sync_file
from elastane.run.nouns.checkpoints import WrittenFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

WriteFile: TypeAlias = Callable[[BinaryIO], None]


def replace_file_set(
    folder: Path, files: Mapping[str, WriteFile], *, marker: str, replaced: Iterable[str] = ()
) -> dict[str, WrittenFile]:
    """Write files under temporary names, then move them into place, the marker last.

    A reader must look for the marker first: if it exists, every file of its set is complete. All writing and
    flushing happens before the first move, so a full disk leaves the previous set unchanged. Existing files
    with the same bytes stay untouched, so a repetition changes nothing at any moment.

    Args:
        folder: the folder of the files, on one file system.
        files: each name with the function that writes its content.
        marker: one of the names.
        replaced: the names of an earlier set to delete, its marker first.

    Returns:
        The size and checksum of each file.

    Raises:
        OSError: a write or a move failed.
    """
    written: dict[str, WrittenFile] = {}
    partials = {name: folder / f".{name}.partial" for name in files}
    try:
        for name, write in files.items():
            with _HashedFile(partials[name]) as file:
                write(file)
                written[name] = file.written
            sync_file(partials[name])
        _move(folder, partials, marker, [name for name in replaced if name not in files])
    finally:
        for partial in partials.values():
            if partial.is_file():
                partial.unlink()
    return written


class _HashedFile(io.BufferedWriter):
    """A new file that hashes its content during the write."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self._digest = xxhash.xxh3_128()
        self._size_bytes = 0

    def write(self, data: "Buffer", /) -> int:
        self._digest.update(data)
        size_bytes = super().write(data)
        self._size_bytes += size_bytes
        return size_bytes

    @property
    def written(self) -> WrittenFile:
        return WrittenFile(self._size_bytes, self._digest.hexdigest())


def _move(folder: Path, partials: Mapping[str, Path], marker: str, replaced: Iterable[str]) -> None:
    changed = {name for name, partial in partials.items() if not _have_equal_bytes(partial, folder / name)}
    stale = [name for name in replaced if (folder / name).exists()]
    if not changed and not stale:
        return
    # One move replaces one file. For more files the marker must be absent between the moves.
    if stale or changed != {marker}:
        (folder / marker).unlink(missing_ok=True)
        changed.add(marker)
    for name in stale:
        (folder / name).unlink()
    for name in sorted(changed, key=lambda name: (name == marker, name)):
        partials[name].replace(folder / name)
    sync_directory(folder)


def _have_equal_bytes(new: Path, old: Path) -> bool:
    return old.is_file() and filecmp.cmp(new, old, shallow=False)
