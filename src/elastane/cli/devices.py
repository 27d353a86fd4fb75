"""What this machine has to train on."""

import os
from pathlib import Path

GPUS = Path("/proc/driver/nvidia/gpus")


def count_devices() -> tuple[int, str]:
    """How many devices, and of which kind: its GPUs, or the cores that this process may use."""
    if GPUS.is_dir() and (gpus := len(list(GPUS.iterdir()))):
        return gpus, "gpu"
    return len(os.sched_getaffinity(0)), "cpu"
