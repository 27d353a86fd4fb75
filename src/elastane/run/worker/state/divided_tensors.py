"""Tensors that are divided among the processes of a worker: DTensors, recognised without their import."""

import torch


def is_shard(tensor: torch.Tensor) -> bool:
    """Return whether this process has only a part of a tensor."""
    return hasattr(tensor, "_local_tensor")


def get_local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a tensor: the tensor itself unless it is divided."""
    return getattr(tensor, "_local_tensor", tensor)


def count_changes(tensor: torch.Tensor) -> int:
    """Return autograd's count of in-place changes of a tensor, or of this process's part of it."""
    count = tensor._version
    # Torch counts a change through a DTensor there, and one of its part in the part.
    return count + get_local(tensor)._version if is_shard(tensor) else count
