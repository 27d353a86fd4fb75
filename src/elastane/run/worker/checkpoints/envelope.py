"""The bytes that ``torch.save`` writes around the elements of a tensor."""

import functools
import io

import msgspec
import numpy as np
import torch
from torch.utils.serialization import config


class Envelope(msgspec.Struct, frozen=True):
    """The bytes that `torch.save` writes before and after the elements of a tensor."""

    before: bytes
    after: bytes


class _EnvelopeRecorder:
    """A file that records the bytes written to it, except the elements of one tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._address, self._nbytes = tensor.data_ptr(), tensor.nbytes
        self.before, self.after = io.BytesIO(), io.BytesIO()
        self._target = self.before
        self.has_elements = tensor.nbytes == 0

    def write(self, data: memoryview) -> int:
        if not self.has_elements and len(data) == self._nbytes and _find_address(data) == self._address:
            self._target, self.has_elements = self.after, True
            return len(data)
        return self._target.write(data)

    def flush(self) -> None:
        return


def _find_address(data: memoryview) -> int:
    return int(np.frombuffer(data, dtype=np.uint8).ctypes.data)


@functools.lru_cache(maxsize=4096)
def make_envelope(dtype: torch.dtype, sizes: tuple[int, ...], stride: tuple[int, ...]) -> Envelope:
    """Return the envelope of every tensor of this type and shape.

    `torch.save` writes it around a tensor with untouched memory. The envelope does not depend on the
    elements, because it lacks the CRC-32 of the zip format, which torch does not check.
    """
    tensor = torch.empty_strided(sizes, stride, dtype=dtype)
    file = _EnvelopeRecorder(tensor)
    with config.patch("save.compute_crc32", False):  # type: ignore[attr-defined]
        torch.save(tensor, file)  # type: ignore[arg-type]
    if not file.has_elements:
        raise AssertionError("torch.save did not write the tensor's memory in one piece")
    return Envelope(file.before.getvalue(), file.after.getvalue())
