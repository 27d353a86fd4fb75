"""What all idioms train on."""

import torch
from torch.utils.data import TensorDataset

LENGTH = 48
CLASSES = 4
WORDS = 20

_generator = torch.Generator().manual_seed(7)
_vectors = torch.randn(LENGTH, 6, generator=_generator)
_images = torch.randn(LENGTH, 1, 8, 8, generator=_generator)
_tokens = torch.randint(1, WORDS, (LENGTH, 12), generator=_generator)

VECTORS = TensorDataset(_vectors, _vectors[:, :CLASSES].argmax(1))
"""Six numbers each, of four classes."""
IMAGES = TensorDataset(_images, _images.flatten(1)[:, :CLASSES].argmax(1))
"""Eight by eight pixels in one channel, of four classes."""
TOKENS = TensorDataset(_tokens)
"""Twelve words each, of twenty."""


def fingerprint(*tensors: torch.Tensor) -> str:
    """What tells bits apart, for a line that is printed."""
    return " ".join(tensor.detach().double().sum().item().hex() for tensor in tensors)
