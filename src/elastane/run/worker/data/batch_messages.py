"""Messages that carry a batch from a loader to its worker; large tensors travel in shared memory.

PyTorch puts each tensor into its own shared memory and sends a descriptor through a new connection. For a
batch of tokens that takes many times longer than a copy in the message.
"""

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

SMALL_BYTES = 1 << 16


class _Pickler(ForkingPickler):
    def reducer_override(self, value: Any) -> Any:
        # Only exact tensors: a subclass may carry more than its values.
        if type(value) is not torch.Tensor or not _is_plain(value) or value.nbytes > SMALL_BYTES:
            return NotImplemented
        try:
            return torch.from_numpy, (np.array(value.numpy()),)
        except TypeError:  # a type that NumPy lacks
            return NotImplemented


def _is_plain(tensor: torch.Tensor) -> bool:
    return not tensor.requires_grad and tensor.device.type == "cpu" and tensor.layout == torch.strided


def pack_batch(batch: Any) -> bytes:
    """Return the message with a batch; it can be unpacked only once."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(batch)
    return buffer.getvalue()


def unpack_batch(message: bytes) -> Any:
    """Return the batch in a message of this process's own loader."""
    return pickle.loads(message)  # noqa: S301 - from a child
