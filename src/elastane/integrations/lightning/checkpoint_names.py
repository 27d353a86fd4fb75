"""The checkpoint files that exist for a run, by which every worker chooses the same new names.

A ModelCheckpoint adds ``-v1`` to a name that exists already. The disk does not tell whether it did: another
worker may have written the same file a moment ago.
"""

from collections.abc import Iterable
from pathlib import Path

from lightning.pytorch.callbacks import ModelCheckpoint


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
