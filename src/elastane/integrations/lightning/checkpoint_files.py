"""The checkpoint files of Lightning, which every worker writes: whole, named alike, without leftovers.

Every worker writes the same content between two steps, and each replaces the file as a whole. So the file
exists as soon as one worker has written it, whichever worker dies.

A ModelCheckpoint adds ``-v1`` to a name that exists already. The disk does not tell whether it did: another
worker may have written the same file a moment ago. So every worker chooses new names by those that the run
knows.

The steps of the run tell whether a partial file still has a writer: every worker finishes its files before
it takes part in the next step. So a partial file that was there before a step and is there after it is one
of a worker that has died.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint

from elastane.common.atomic_file import find_partials, open_replacement
from elastane.common.errors import RunFailed


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes and removes checkpoint files that other workers write and remove at the same time."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write a checkpoint; a file of this name is replaced as a whole.

        Raises:
            RunFailed: the disk does not take it.
        """
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open_replacement(target, durable=True) as file:
                torch.save(checkpoint, file)
        except OSError as error:
            raise RunFailed(
                f"cannot write the checkpoint {target}: {error.strerror}",
                means="the run cannot go on: its files would differ from those of a run without this error",
                do="free space there, and resume with elastane run --resume",
            ) from error

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint that another worker may have removed already."""
        if "://" in str(path) or Path(path).is_dir():
            super().remove_checkpoint(path)
        else:
            Path(path).unlink(missing_ok=True)


class CheckpointNames:
    """The paths of checkpoints, as all workers of the run know them.

    Attributes:
        names: the paths of the files that were there before the run, and of those that it has written.
        written: the paths of all files that this worker has written, also of those removed since.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.written: set[str] = set()

    def adopt(self, callbacks: Iterable[object]) -> None:
        """Give callbacks these names to ask for, and add the files in their folders.

        Call it before the first step, when no worker of the run has written a file yet.
        """
        for callback in callbacks:
            if isinstance(callback, ModelCheckpoint):
                vars(callback)["file_exists"] = self.contains
                folder = Path(callback.dirpath or ".")
                self.names |= {str(path) for path in folder.glob("*.ckpt")}

    def contains(self, path: str | Path, _trainer: object = None) -> bool:
        return str(path) in self.names

    def add(self, path: str | Path) -> None:
        self.names.add(str(path))
        self.written.add(str(path))

    def remove(self, path: str | Path) -> None:
        self.names.discard(str(path))


class LeftoverPartials:
    """Partial files of checkpoints of this run, as one worker has seen them; others there stay."""

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
