"""A slice of a tensor, for a checkpoint."""

import msgspec
import torch


class TensorSlice(msgspec.Struct, frozen=True):
    """Elements ``[start, stop)`` of one tensor, in the memory order of the whole tensor.

    Args:
        key: the name in the checkpoint: ``model.<name>`` or ``optimizer.state.<name>.exp_avg``.
        shape: the shape of the whole tensor.
        stride: the strides of the whole tensor in memory; dense, perhaps permuted.
        start: the first element of the slice.
        stop: one past the last element.
        data: the elements, 1-D and contiguous, on the CPU.
    """

    key: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int
    stop: int
    data: torch.Tensor


def slice_whole(key: str, tensor: torch.Tensor) -> TensorSlice:
    """Return all of a small tensor as one slice; a copy if it is not dense."""
    dense = tensor.detach()
    shape = tuple(dense.shape)
    if dense.is_contiguous():
        flat = dense.reshape(-1)
    else:
        # Channels last and similar formats are dense too, so their memory needs no copy.
        order = sorted(
            range(dense.dim()), key=lambda dim: (dense.stride(dim), dense.shape[dim]), reverse=True
        )
        dense = dense.permute(order).contiguous().permute(_invert(order))
        flat = dense.permute(order).reshape(-1)
    return TensorSlice(key, shape, tuple(dense.stride()), 0, flat.numel(), flat)


def _invert(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=lambda dim: order[dim])
