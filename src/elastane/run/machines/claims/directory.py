"""A claim list in a directory: on a disk, or on a file system that several nodes share, NFS included.

The directory must exist and is never created here: in its absence, usually the file system is not mounted.
So let it be a directory inside the mount point, not the mount point itself, which exists without its file
system too.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from elastane.common.atomic_file import create_file, find_partials, sync_directory
from elastane.run.machines.claims.place import ClaimsUnavailable, ClaimsUnusable, Content
from elastane.run.machines.claims.records import LARGEST_RECORD_BYTES, Unreadable

FOREVER = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)
OF_ONE_SLOT = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO)
"""Errors of a single file in a directory that answers."""
ANOTHER_DIRECTORY = "choose a directory on another file system: NFS and the usual local ones have hard links"


class DirectoryPlace:
    """Keeps each slot in a file of its number.

    A claimant writes and syncs a file under a temporary name and links it to the number, which fails if the
    number exists. So no reader ever sees a part of a record, and a killed claimant leaves a temporary file.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory).absolute()
        self.where = str(self._directory)
        self._unsynced = False
        """A link may have been made that the disk has not confirmed."""

    def create(self, slot: int, content: bytes) -> bool:
        with _translate_errors("write", self.where):
            self._remove_old_partials(slot)
            # Also after a failure: over NFS the reply to a link may be lost. Also for the link of another
            # claimant: it may have died before its own sync.
            self._unsynced = True
            created = self._create(str(slot), content)
            self._sync()
        return created

    def prove_writable(self) -> None:
        name = f"probe-{secrets.token_hex(8)}"
        with _translate_errors("write", self.where):
            try:
                self._create(name, b"{}")
                replaced = self._create(name, b"{}")
            finally:
                with suppress(OSError):
                    (self._directory / name).unlink()
        if replaced:
            raise ClaimsUnusable(
                f"the claim list {self.where} cannot be used: its file system makes a hard link over a file",
                means="two claimants could both get a slot, so nothing was claimed",
                do=ANOTHER_DIRECTORY,
            )

    def _create(self, name: str, content: bytes) -> bool:
        try:
            return create_file(self._directory / name, content, mode=0o644)
        except OSError as error:
            if error.filename2 is None or error.errno not in NO_LINKS:
                raise
            raise _explain_missing_links(self.where, error) from error

    def _sync(self) -> None:
        if self._unsynced:
            sync_directory(self._directory)
            self._unsynced = False

    def _remove_old_partials(self, slot: int) -> None:
        """Remove the temporary files of killed claimants of slots that are held by now."""
        for partial, path in find_partials(self._directory):
            if path.name.isascii() and path.name.isdigit() and int(path.name) < slot:
                partial.unlink(missing_ok=True)

    def read(self, first_slot: int) -> tuple[Content, ...]:
        with _translate_errors("read", self.where):
            self._sync()
            # All slots are read in one directory, even if another one takes its path meanwhile.
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return tuple(_read_slots(directory, first_slot))
            finally:
                os.close(directory)


def _read_slots(directory: int, first_slot: int) -> Iterator[Content]:
    for slot in count(first_slot):
        try:
            mode = os.stat(str(slot), dir_fd=directory, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        yield (
            _read_file(directory, str(slot)) if stat.S_ISREG(mode) else Unreadable("it is not a regular file")
        )


def _read_file(directory: int, name: str) -> Content:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
    except OSError as error:
        if error.errno not in OF_ONE_SLOT:
            raise
        return Unreadable(f"its file cannot be opened ({error.strerror})")
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(LARGEST_RECORD_BYTES + 1)
    if len(content) > LARGEST_RECORD_BYTES:
        return Unreadable(f"it has more than {LARGEST_RECORD_BYTES} bytes")
    return content


def _explain_missing_links(where: str, error: OSError) -> ClaimsUnusable:
    return ClaimsUnusable(
        f"the claim list {where} cannot be written: its file system refuses hard links ({error.strerror})",
        means="without them two claimants could both get a slot, so nothing was claimed",
        do=ANOTHER_DIRECTORY,
    )


@contextmanager
def _translate_errors(action: str, where: str) -> Iterator[None]:
    """Translate the errors of system calls.

    Raises:
        ClaimsUnavailable: trying again may help.
        ClaimsUnusable: it cannot help.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise ClaimsUnavailable(
            f"the claim list {where} does not exist",
            do="mount its file system; for a new list, make the directory",
        ) from error
    except NotADirectoryError as error:
        raise ClaimsUnusable(
            f"the claim list {where} is not a directory",
            means="nothing was claimed",
            do="name the directory of the list",
        ) from error
    except OSError as error:
        what = f"cannot {action} the claim list {where}: {error.strerror}"
        if error.errno in FOREVER:
            raise ClaimsUnusable(
                what,
                means="nothing was claimed",
                do=f"let this user read and write {where} (`ls -ld`, `findmnt --target`)",
            ) from error
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise ClaimsUnavailable(what, do="free some space there" if full else "") from error
