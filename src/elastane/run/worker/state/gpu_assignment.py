"""The assignment of one GPU of the machine to a worker.

It does not initialise CUDA: a process that has initialised CUDA cannot fork workers.
"""

import os

import torch

from elastane.run.worker.state.gpu_locks import find_lock_directory, lock_gpu

VISIBLE = "CUDA_VISIBLE_DEVICES"


def assign_gpu(worker: int) -> None:
    """Make one GPU of the agent, which no other worker of this machine uses, visible to this process.

    Call this before CUDA is initialised. The script's ``"cuda"`` is then the GPU of this worker. If there are
    more workers than GPUs, workers share GPUs. Without a GPU nothing happens.
    """
    count = torch.cuda.device_count()
    if count:
        os.environ[VISIBLE] = lock_gpu(
            list_gpu_names(count, os.environ.get(VISIBLE)), worker, find_lock_directory()
        )


def list_gpu_names(count: int, visible: str | None) -> list[str]:
    """Return the visible GPUs as ``CUDA_VISIBLE_DEVICES`` names them.

    Args:
        count: the number of GPUs, at least 1.
        visible: the agent's value of the variable, numbers or UUIDs; None: it is not set.
    """
    names = visible.split(",") if visible else map(str, range(count))
    return [name.strip() for name in names][:count]
