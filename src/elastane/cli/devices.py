"""The devices of this machine."""

import os
from itertools import takewhile
from pathlib import Path

GPUS = Path("/proc/driver/nvidia/gpus")


def count_devices() -> tuple[int, str]:
    """Return the number and kind of devices: the GPUs, or without any the cores that this process may use."""
    gpus = count_gpus()
    return (gpus, "gpu") if gpus else (count_cores(), "cpu")


def count_gpus() -> int:
    """Return the number of GPUs that this process may use; ``CUDA_VISIBLE_DEVICES`` can limit them."""
    found = len(list(GPUS.iterdir())) if GPUS.is_dir() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    # CUDA ignores all names after one that is not a device, such as -1.
    names = takewhile(lambda name: name and not name.startswith("-"), map(str.strip, visible.split(",")))
    return min(found, len(list(names)))


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
