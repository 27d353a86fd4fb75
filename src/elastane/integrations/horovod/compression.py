"""Compression of gradients while they travel between processes."""

import torch
from torch import Tensor


class NoneCompressor:
    """Sends a tensor as it is."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the tensor in the type that it had before `compress`."""
        return tensor.to(dtype)


class FP16Compressor(NoneCompressor):
    """Sends floating-point tensors as fp16."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        sent = tensor.half() if tensor.dtype.is_floating_point else tensor
        return sent, tensor.dtype


class BF16Compressor(NoneCompressor):
    """Sends floating-point tensors as bf16."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        sent = tensor.bfloat16() if tensor.dtype.is_floating_point else tensor
        return sent, tensor.dtype


class Compression:
    """The compressors by their names in Horovod."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
