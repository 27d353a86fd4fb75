"""Detection of changed tensors: marks that are cheap, and digests that are certain."""

from collections.abc import Hashable

import msgspec
import torch
import xxhash

from elastane.runtime.state.memory import raw_bytes

SAMPLED_BYTES = 64


class ChangeMark(msgspec.Struct, frozen=True):
    """A mark of a tensor that differs after most changes.

    Args:
        address: of its elements; changes when ``.data`` is assigned.
        version: autograd's count of changes in place; changes of ``.data`` do not count.
        sample: some bytes of its elements, on the host only.
    """

    address: int
    version: int
    sample: bytes


class ChangeDetector:
    """Marks tensors; it remembers a view of the bytes of each."""

    def __init__(self) -> None:
        self._views: dict[Hashable, tuple[int, memoryview]] = {}

    def mark(self, key: Hashable, tensor: torch.Tensor) -> ChangeMark:
        """Return the mark of a tensor as it is now.

        Args:
            key: of the tensor, the same each time.
            tensor: on any device.
        """
        address = tensor.data_ptr()
        if tensor.device.type != "cpu" or not tensor.numel():
            return ChangeMark(address, tensor._version, b"")  # noqa: SLF001 - torch has no accessor
        known = self._views.get(key)
        if known is None or known[0] != address:
            dense = tensor.detach()
            if not dense.is_contiguous():
                dense = dense.as_strided((1,), (1,))
            known = self._views[key] = address, memoryview(raw_bytes(dense)).cast("B")
        step = max(1, len(known[1]) // SAMPLED_BYTES)
        # The first byte of an element changes most often: numbers are little-endian.
        step -= step % tensor.element_size() if step > tensor.element_size() else 0
        return ChangeMark(address, tensor._version, known[1][::step].tobytes())  # noqa: SLF001 - likewise


def digest_tensor(tensor: torch.Tensor) -> str:
    """Return the XXH3-128 of the elements of a tensor, with its shape and type."""
    found = xxhash.xxh3_128(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    if tensor.numel():
        found.update(raw_bytes(tensor))
    return found.hexdigest()
