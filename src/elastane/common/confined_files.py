"""Reading below a directory that another user, a job or another machine may have written.

Such a directory can have a link to a private file of the reader in the place of any file or folder, a second
name of another user's file, a pipe without a writer, or a file of a terabyte of holes. Everything below
it is therefore opened here, and a test in ``tests/house`` finds code that opens it in another way.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

import msgspec

from elastane.common.untrusted_data import LARGEST_BYTES, Malformed, check_regular, read_at_most

MOST_NAMES = 100_000
"""The most entries of a directory that are listed."""
HOLES_BYTES, HOLES_PER_BYTE = 1 << 30, 64
"""A file that is larger than the first number, plus the second one for each of its bytes on the disk, is
refused."""
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ConfinedDirectory(msgspec.Struct, frozen=True):
    """A directory to read from without waiting. Links may lead to it, and none below it is followed."""

    root: Path

    def open(self, path: Path, *, in_part: bool = False) -> BufferedReader:
        """Open a regular file below the directory for reading.

        Args:
            in_part: the caller reads a bounded part, so the file may be nearly all holes.

        Raises:
            Malformed: it is something else, or there is a link on the way to it.
            OSError: it cannot be opened.
        """
        with self._open_folder(path) as (folder, name, owner):
            # Check before opening too, because opening a device may have an effect.
            check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
            descriptor = os.open(name, flags, dir_fd=folder)
        try:
            _check_file(descriptor, owner, in_part=in_part)
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise

    def read(self, path: Path, at_most_bytes: int = LARGEST_BYTES) -> bytes:
        """Return the content of a regular file below the directory.

        Raises:
            Malformed: see `open`; or it is larger.
            OSError: it cannot be read.
        """
        with self.open(path, in_part=True) as file:
            return read_at_most(file, at_most_bytes)

    def find_size(self, path: Path) -> int | None:
        """Return the size of a regular file in bytes; None: no such file, or a link is on the way."""
        try:
            with self._open_folder(path) as (folder, name, _):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (OSError, Malformed):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def has_file(self, path: Path) -> bool:
        """Return whether a regular file is at this path."""
        return self.find_size(path) is not None

    def list_files(self, path: Path) -> dict[str, int]:
        """Return the sizes of the regular files in this directory or one below it, sorted by their names.

        Raises:
            Malformed: there is a link on the way to it, or it has too many entries.
            OSError: it cannot be read.
        """
        return {
            name: found.st_size
            for name, found in self._list_entries(path).items()
            if stat.S_ISREG(found.st_mode)
        }

    def list_folders(self, path: Path) -> list[str]:
        """Return the folders in this directory or one below it, sorted; see `list_files`."""
        return [name for name, found in self._list_entries(path).items() if stat.S_ISDIR(found.st_mode)]

    def list_links(self, path: Path) -> list[str]:
        """Return the symbolic links in this directory or one below it, sorted; see `list_files`."""
        return [name for name, found in self._list_entries(path).items() if stat.S_ISLNK(found.st_mode)]

    def _list_entries(self, path: Path) -> dict[str, os.stat_result]:
        """Return the entries of a directory, sorted by name; none if it does not exist."""
        try:
            with self._open_folder(path / "entry") as (folder, _, _):
                # A descriptor of O_PATH cannot be listed.
                listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        found: dict[str, os.stat_result] = {}
        try:
            with os.scandir(listed) as entries:
                for entry in entries:
                    if len(found) == MOST_NAMES:
                        raise Malformed(f"it has more than {MOST_NAMES} entries")
                    # A file may be gone meanwhile.
                    with suppress(FileNotFoundError):
                        found[entry.name] = entry.stat(follow_symlinks=False)
        finally:
            os.close(listed)
        return dict(sorted(found.items()))

    @contextmanager
    def _open_folder(self, path: Path) -> Iterator[tuple[int, str, int]]:
        """Yield the folder of a path as a descriptor, the last part of the path, and the root's owner."""
        *folders, name = path.relative_to(self.root).parts
        if ".." in (*folders, name):
            raise Malformed("it leads out of its directory")
        descriptor = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            owner = os.fstat(descriptor).st_uid
            for folder in folders:
                inner = _open_inner_folder(descriptor, folder)
                os.close(descriptor)
                descriptor = inner
            yield descriptor, name, owner
        finally:
            os.close(descriptor)


def _open_inner_folder(folder: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise Malformed(f"{name} is a symbolic link, not a directory") from None
        raise


def _check_file(descriptor: int, owner: int, *, in_part: bool) -> None:
    """Refuse an open file that is not regular, has another owner's name elsewhere, or is nearly all holes."""
    found = os.fstat(descriptor)
    check_regular(found.st_mode)
    if found.st_nlink > 1 and found.st_uid != owner:
        # A hard link is the only other way by which a private file of another user gets here.
        raise Malformed("it has another name, and an owner other than that of its directory")
    if not in_part and found.st_size > HOLES_BYTES + HOLES_PER_BYTE * 512 * found.st_blocks:
        # Some file systems do not count blocks: they know no holes either.
        if os.lseek(descriptor, 0, os.SEEK_HOLE) < found.st_size:
            raise Malformed(f"nearly all of its {found.st_size} bytes are holes")
        os.lseek(descriptor, 0, os.SEEK_SET)
