"""Faults in the middle of a checkpoint file of Lightning, made by replacing the function that writes it."""

import io
import os
import signal
from functools import partial

import faults
import torch

from elastane.integrations.lightning.checkpoint_files import AtomicCheckpointIO
from elastane.run.worker import worker_settings


def arm(dies: int | None, waits: int | None) -> None:
    """Let a worker die, or wait, when half of a file is written.

    Args:
        dies: the worker that dies inside its first file.
        waits: the number of the file, from 1, in which a worker of the first attempt creates the file
            ``held`` and waits until it is killed.
    """
    settings = worker_settings.get_settings()
    if settings.run_dir is None:
        return
    root = settings.run_dir.root
    inner, inner_save = AtomicCheckpointIO.save_checkpoint, torch.save
    written = []

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        written.append(path)
        waiting = len(written) == waits and not (root / "held").exists()
        if settings.worker == dies or waiting:
            torch.save = partial(fail, waiting)
        inner(self, checkpoint, path, storage_options)

    def fail(waiting, content, file):
        whole = io.BytesIO()
        inner_save(content, whole)
        file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
        file.flush()
        if not waiting:
            os.kill(os.getpid(), signal.SIGKILL)
        (root / "held").touch()
        faults.wait_for("release")

    AtomicCheckpointIO.save_checkpoint = save_checkpoint
