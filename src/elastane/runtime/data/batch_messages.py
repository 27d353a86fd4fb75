"""A batch from a loader to its worker: small tensors inside the message, large ones in shared memory.

PyTorch puts every tensor into shared memory of its own and hands over a descriptor through a new connection,
which for a batch of tokens takes many times as long as copying it.
"""

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

SMALL_BYTES = 1 << 16


class _Pickler(ForkingPickler):
    def reducer_override(self, value: Any) -> Any:  # noqa: ANN401 - as pickle has it
        # Exactly a tensor: a subclass may carry more than its values.
        if type(value) is not torch.Tensor or not _plain(value) or value.nbytes > SMALL_BYTES:
            return NotImplemented
        try:
            return torch.from_numpy, (np.array(value.numpy()),)
        except TypeError:  # a type that NumPy does not have
            return NotImplemented


def _plain(tensor: torch.Tensor) -> bool:
    return not tensor.requires_grad and tensor.device.type == "cpu" and tensor.layout == torch.strided


def pack_batch(batch: Any) -> bytes:  # noqa: ANN401 - the user's
    """The message with a batch; to be unpacked once."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(batch)
    return buffer.getvalue()


def unpack_batch(message: bytes) -> Any:  # noqa: ANN401 - the user's
    """The batch in a message of a process of our own."""
    return pickle.loads(message)  # noqa: S301 - from a child
