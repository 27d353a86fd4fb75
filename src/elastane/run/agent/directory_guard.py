"""Detection of a run directory that was moved, removed or replaced during the run.

A process that writes to a removed or moved file gets no error: its lines are lost or end up elsewhere. A file
that is opened by name is created at the old path, or in the directory that replaced it. The agent therefore
compares the identities of the directory and its files with those at the start.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from elastane.common.errors import RunDirectoryLost
from elastane.run.nouns.rundir import RunDir

DELETED = " (deleted)"
"""The suffix that the kernel adds to the path of an open directory that was removed."""

Identity: TypeAlias = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class DirectorySnapshot:
    """The identities of a run directory and its files at one time.

    Args:
        directory: identity of the directory at its path; None: there is none.
        place: the path of the run's own directory now; None: it was removed.
        files: identities of the permanent files that exist, by name.
    """

    directory: Identity | None
    place: Path | None
    files: dict[str, Identity]


def describe_loss(root: Path, first: DirectorySnapshot, now: DirectorySnapshot) -> RunDirectoryLost | None:
    """Return the error for a loss between two snapshots of a run directory; None: nothing was lost.

    Args:
        first: the snapshot at the start of the run, with every file that appeared since.
    """
    if now.directory != first.directory:
        instead = "" if now.directory is None else "; another directory is in its place"
        if now.place is not None:
            return RunDirectoryLost(
                f"the run directory {root} was moved to {now.place} during the run{instead}",
                means=f"no checkpoint, model or log can be written to {root}, so the run was "
                f"ended; all that it has written is in {now.place}",
                do=f"resume it from its newest checkpoint there: elastane run --resume {now.place}",
                moved_to=now.place,
            )
        return RunDirectoryLost(
            f"the run directory {root} was removed during the run{instead}",
            means="its ledger, its logs and the checkpoints in it are gone and nothing can be recorded, "
            "so the run was ended",
            do="start a new run, and leave its directory in place until the run is over",
        )
    for name, identity in first.files.items():
        if now.files.get(name) != identity:
            how = "replaced by another file" if name in now.files else "removed"
            return RunDirectoryLost(
                f"{root / name} was {how} during the run",
                means="all that the run writes to that file would be lost, so the run was ended",
                do="start a new run, and leave the files of its directory in place until the run is over",
            )
    return None


class DirectoryGuard:
    """Compares a run directory and its permanent files with those at the start of the run.

    Args:
        run_dir: of the run; it exists.
        shared: several nodes write into it. Then a coordinator that takes over from another machine replaces
            its ledger and its events.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, run_dir: RunDir, *, shared: bool = False) -> None:
        self._run_dir = run_dir
        written_once = () if shared else (run_dir.ledger, run_dir.events)
        self._permanent = (run_dir.lock, *written_once)
        self._fd = os.open(run_dir.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._first = self._take_snapshot()

    def check(self) -> RunDirectoryLost | None:
        """Return what was lost since the run began; None: nothing, or the file system does not answer."""
        try:
            now = self._take_snapshot()
        except OSError:
            return None  # whether anything is lost is unknown
        self._first.files.update(
            {name: identity for name, identity in now.files.items() if name not in self._first.files}
        )
        return describe_loss(self._run_dir.root, self._first, now)

    @property
    def complete(self) -> bool:
        """Whether every permanent file exists, so that the loss of any would be noticed."""
        return len(self._first.files) == len(self._permanent)

    def close(self) -> None:
        os.close(self._fd)

    def _take_snapshot(self) -> DirectorySnapshot:
        """Return the current identities of the directory and its files."""
        found = {
            path.name: identity for path in self._permanent if (identity := _read_identity(path)) is not None
        }
        return DirectorySnapshot(_read_identity(self._run_dir.root), self._find_place(), found)

    def _find_place(self) -> Path | None:
        place = Path(f"/proc/self/fd/{self._fd}").readlink()
        return None if place.name.endswith(DELETED) or not os.fstat(self._fd).st_nlink else place


def _read_identity(path: Path) -> Identity | None:
    """Return the identity of the file at a path; None: no file exists there."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
