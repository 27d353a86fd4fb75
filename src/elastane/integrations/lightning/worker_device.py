"""The one device of a worker."""

from typing import Any

import torch


def choose_device(accelerator: Any) -> torch.device:
    """Return the first device of an accelerator of Lightning."""
    devices: list[torch.device] = accelerator.get_parallel_devices(accelerator.parse_devices(1))
    return devices[0]
