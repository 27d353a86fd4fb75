"""Whether a run's directory is still the one that the run writes to.

A process goes on writing to a file that was removed or moved, and notices nothing: the lines are lost or go
elsewhere. What is opened by name is created in the old place, or in what has taken it. So the agent compares.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from elastane.api.errors import RunDirectoryLost
from elastane.api.rundir import RunDir

DELETED = " (deleted)"
"""What the kernel adds to the path of an open directory that was removed."""

Identity: TypeAlias = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class DirectorySnapshot:
    """What was found at one look.

    Args:
        directory: what its path leads to; None: nothing.
        place: where the run's own directory is now; None: it was removed.
        files: what the paths of its lasting files lead to; those that do not exist are left out.
    """

    directory: Identity | None
    place: Path | None
    files: dict[str, Identity]


def describe_loss(root: Path, first: DirectorySnapshot, now: DirectorySnapshot) -> RunDirectoryLost | None:
    """Say what was lost between two looks at a run's directory; None: nothing.

    Args:
        root: its path.
        first: when the run began, with every file that was seen since.
        now: at this moment.
    """
    if now.directory != first.directory:
        instead = "" if now.directory is None else "; another directory is in its place"
        if now.place is not None:
            return RunDirectoryLost(
                f"the run directory {root} was moved to {now.place} during the run{instead}",
                means=f"no checkpoint, model or log could be written to {root} any more, so the run was "
                f"ended; everything it had written is in {now.place}",
                do=f"elastane run --resume {now.place} goes on from its newest checkpoint there",
                moved_to=now.place,
            )
        return RunDirectoryLost(
            f"the run directory {root} was removed during the run{instead}",
            means="its ledger, logs and the checkpoints in it are gone, and nothing could be recorded any "
            "more, so the run was ended",
            do="begin another run, and leave its directory in place until it is over",
        )
    for name, identity in first.files.items():
        if now.files.get(name) != identity:
            how = "replaced by another file" if name in now.files else "removed"
            return RunDirectoryLost(
                f"{root / name} was {how} during the run",
                means="what the run writes to it would be lost, so the run was ended",
                do="begin another run, and leave the files of its directory as they are until it is over",
            )
    return None


class DirectoryGuard:
    """Knows the directory of a run by what it is, not by its name.

    Args:
        run_dir: of the run; it exists.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._lasting = (run_dir.lock, run_dir.ledger, run_dir.events)
        self._fd = os.open(run_dir.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._first = self._look()

    def check(self) -> RunDirectoryLost | None:
        """Return what was lost since the run began; None: nothing, or nothing can be told at the moment."""
        try:
            now = self._look()
        except OSError:
            return None  # a file system that does not answer has not lost anything yet
        self._first.files.update(
            {name: of for name, of in now.files.items() if name not in self._first.files}
        )
        return describe_loss(self._run_dir.root, self._first, now)

    @property
    def complete(self) -> bool:
        """Every lasting file has been seen, and would be missed."""
        return len(self._first.files) == len(self._lasting)

    def close(self) -> None:
        os.close(self._fd)

    def _look(self) -> DirectorySnapshot:
        """Look at the directory and its files.

        Raises:
            OSError: the file system does not answer.
        """
        found = {path.name: identity for path in self._lasting if (identity := _identity(path)) is not None}
        return DirectorySnapshot(_identity(self._run_dir.root), self._place(), found)

    def _place(self) -> Path | None:
        place = Path(f"/proc/self/fd/{self._fd}").readlink()
        return None if place.name.endswith(DELETED) or not os.fstat(self._fd).st_nlink else place


def _identity(path: Path) -> Identity | None:
    """What a path leads to; None: nothing.

    Raises:
        OSError: the file system does not answer.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
