"""Tensors that are divided among the processes of a worker: DTensors, recognised without their import."""

import torch


def is_shard(tensor: torch.Tensor) -> bool:
    """Return whether this process has only a part of a tensor."""
    return hasattr(tensor, "_local_tensor")


def get_local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a tensor: the tensor itself unless it is divided."""
    return getattr(tensor, "_local_tensor", tensor)
