"""The datasets of all idioms."""

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
"""Samples of six numbers, in four classes."""
IMAGES = TensorDataset(_images, _images.flatten(1)[:, :CLASSES].argmax(1))
"""Images of eight by eight pixels and one channel, in four classes."""
TOKENS = TensorDataset(_tokens)
"""Samples of twelve words, from a vocabulary of twenty."""


def compute_fingerprint(*tensors: torch.Tensor) -> str:
    """Return a text that depends on all bits, to print."""
    return " ".join(tensor.detach().double().sum().item().hex() for tensor in tensors)
