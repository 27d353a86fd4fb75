"""The devices of this machine."""

import os
from pathlib import Path

GPUS = Path("/proc/driver/nvidia/gpus")


def count_devices() -> tuple[int, str]:
    """Return the number and kind of devices: the GPUs, or without any the cores that this process may use."""
    if GPUS.is_dir() and (gpus := len(list(GPUS.iterdir()))):
        return gpus, "gpu"
    return len(os.sched_getaffinity(0)), "cpu"
