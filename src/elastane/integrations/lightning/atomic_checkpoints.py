"""Checkpoint files of Lightning that appear complete or not at all, although every worker writes them.

Every worker writes the same content between two steps, and each replaces the file as a whole. So the file
exists as soon as one worker has written it, whichever worker dies.
"""

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from elastane.common.atomic_file import open_replacement
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
