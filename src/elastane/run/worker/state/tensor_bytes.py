"""The memory of tensors as bytes and as flat tensors."""

import torch


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor; copy only if it is not contiguous or not on the host."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def view_bytes(flat: torch.Tensor) -> memoryview:
    """Return the bytes of a 1-D contiguous tensor without a copy.

    Raises:
        ValueError: the tensor is not contiguous.
    """
    if not flat.is_contiguous():
        raise ValueError("a tensor that is not contiguous has no bytes of its own")
    if not flat.numel():
        return memoryview(b"")
    return memoryview(flat.detach().view(torch.uint8).numpy())  # type: ignore[arg-type]


def flatten_dense(dense: torch.Tensor) -> torch.Tensor:
    """Return a view of all elements of a dense tensor, 1-D, in memory order."""
    return dense.as_strided((dense.numel(),), (1,), dense.storage_offset())
