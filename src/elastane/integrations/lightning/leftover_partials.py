"""The partial files that killed workers leave beside checkpoint files, and their removal by the others.

The steps of the run tell whether a partial file still has a writer: every worker finishes its files before
it takes part in the next step. So a partial file that was there before a step and is there after it is one
of a worker that has died.
"""

from collections.abc import Iterator
from pathlib import Path

from elastane.common.atomic_file import find_partials
from elastane.integrations.lightning.checkpoint_names import CheckpointNames


class LeftoverPartials:
    """Partial files of checkpoints of this run, as one worker has seen them.

    Args:
        files: the checkpoints of the run; other files in their folders stay.
    """

    def __init__(self, files: CheckpointNames) -> None:
        self._files = files
        self._first_seen: dict[Path, int] = {}

    def look(self, folder: Path, step: int) -> None:
        """Record the partial files in a folder after a step."""
        for path in self._find(folder):
            self._first_seen.setdefault(path, step)

    def remove_older(self, step: int) -> None:
        """Remove the partial files that were there after an earlier step."""
        for path in [path for path, seen in self._first_seen.items() if seen < step]:
            path.unlink(missing_ok=True)
            del self._first_seen[path]

    def remove_all(self) -> None:
        """Remove all partial files; call it when no worker of the run writes a checkpoint."""
        for folder in {Path(name).parent for name in self._files.written}:
            for path in self._find(folder):
                path.unlink(missing_ok=True)

    def _find(self, folder: Path) -> Iterator[Path]:
        for partial, replaced in find_partials(folder):
            if str(replaced) in self._files.written:
                yield partial
