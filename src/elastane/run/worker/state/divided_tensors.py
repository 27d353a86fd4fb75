"""Tensors that are divided among the processes of a worker: DTensors, recognised without their import."""

import torch


def is_shard(tensor: torch.Tensor) -> bool:
    """Return whether this process has only a part of a tensor."""
    return hasattr(tensor, "_local_tensor")


def get_local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a tensor: the tensor itself unless it is divided."""
    return getattr(tensor, "_local_tensor", tensor)


def set_local(parameter: torch.nn.Parameter, local: torch.Tensor) -> None:
    """Replace this process's part of a parameter: the tensor itself unless it is divided."""
    if is_shard(parameter):
        parameter._local_tensor = local  # type: ignore[attr-defined]
    else:
        parameter.data = local


def get_local_gradient(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return this process's part of the gradient of a parameter, divided as the parameter is."""
    if is_shard(gradient) and gradient.placements != parameter.placements:  # type: ignore[attr-defined]
        # Such as that of a norm in a sequence-parallel module: the sum over processes is still to be made.
        gradient = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]
    local = get_local(gradient)
    return local.wait() if hasattr(local, "wait") else local


def count_changes(tensor: torch.Tensor) -> int:
    """Return autograd's count of in-place changes of a tensor, or of this process's part of it."""
    count = tensor._version
    # Torch counts a change through a DTensor there, and one of its part in the part.
    return count + get_local(tensor)._version if is_shard(tensor) else count
