"""Marks that tell at little cost whether a tensor was changed, and digests that tell for certain."""

from collections.abc import Hashable

import msgspec
import torch
import xxhash

from elastane.runtime.state.memory import raw_bytes

SAMPLED_BYTES = 64


class ChangeMark(msgspec.Struct, frozen=True):
    """What tells at little cost that a tensor was changed.

    Args:
        address: of its elements; changes when ``.data`` is assigned.
        version: autograd's count of changes in place; ``.data`` passes it by.
        sample: some bytes of its elements, on the host only.
    """

    address: int
    version: int
    sample: bytes


class ChangeDetector:
    """Marks tensors; of each it remembers where its bytes lie."""

    def __init__(self) -> None:
        self._views: dict[Hashable, tuple[int, memoryview]] = {}

    def mark(self, key: Hashable, tensor: torch.Tensor) -> ChangeMark:
        """The mark of a tensor as it is now.

        Args:
            key: of the tensor, the same each time.
            tensor: on any device.
        """
        address = tensor.data_ptr()
        if tensor.device.type != "cpu" or not tensor.numel():
            return ChangeMark(address, tensor._version, b"")  # noqa: SLF001 - what torch names it
        known = self._views.get(key)
        if known is None or known[0] != address:
            dense = tensor.detach()
            if not dense.is_contiguous():
                dense = dense.as_strided((1,), (1,))
            known = self._views[key] = address, memoryview(raw_bytes(dense)).cast("B")
        step = max(1, len(known[1]) // SAMPLED_BYTES)
        # The first byte of an element is the one that changes most: numbers are little-endian.
        step -= step % tensor.element_size() if step > tensor.element_size() else 0
        return ChangeMark(address, tensor._version, known[1][::step].tobytes())  # noqa: SLF001 - likewise


def digest_tensor(tensor: torch.Tensor) -> str:
    """XXH3-128 of the elements of a tensor, with its shape and type."""
    found = xxhash.xxh3_128(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    if tensor.numel():
        found.update(raw_bytes(tensor))
    return found.hexdigest()
