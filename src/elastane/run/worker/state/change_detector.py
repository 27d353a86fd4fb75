"""Detection of changed tensors: cheap marks, which may miss a change, and digests, which miss none."""

from collections.abc import Hashable

import msgspec
import torch
import xxhash

from elastane.run.worker.state.tensor_bytes import raw_bytes

SAMPLED_BYTES = 64


class ChangeMark(msgspec.Struct, frozen=True):
    """A mark of a tensor; after most changes the tensor has another mark.

    Args:
        address: the address of its elements; assigning ``.data`` changes it.
        version: autograd's count of in-place changes, which does not count those of ``.data``.
        sample: some bytes of its elements; empty for tensors that are not on the host.
    """

    address: int
    version: int
    sample: bytes


class ChangeDetector:
    """Marks tensors; remembers a view of the bytes of each."""

    def __init__(self) -> None:
        self._views: dict[Hashable, tuple[int, memoryview]] = {}

    def mark(self, key: Hashable, tensor: torch.Tensor) -> ChangeMark:
        """Return the mark of a tensor's present content.

        Args:
            key: identifies the tensor; the same in every call.
        """
        address = tensor.data_ptr()
        if tensor.device.type != "cpu" or not tensor.numel():
            return ChangeMark(address, tensor._version, b"")
        view = self._views.get(key)
        if view is None or view[0] != address:
            dense = tensor.detach()
            if not dense.is_contiguous():
                dense = dense.as_strided((1,), (1,))
            view = self._views[key] = address, memoryview(raw_bytes(dense)).cast("B")
        step = max(1, len(view[1]) // SAMPLED_BYTES)
        # The first byte of an element changes most often: numbers are little-endian.
        step -= step % tensor.element_size() if step > tensor.element_size() else 0
        return ChangeMark(address, tensor._version, view[1][::step].tobytes())


def digest_tensor(tensor: torch.Tensor) -> str:
    """Return the XXH3-128 of the elements of a tensor, with its shape and type."""
    digest = xxhash.xxh3_128(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    if tensor.numel():
        digest.update(raw_bytes(tensor))
    return digest.hexdigest()
