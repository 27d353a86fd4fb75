"""A text on every machine: the source of Python's standard library, as bytes."""

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

TEXT_BYTES = 4_000_000
HELD_OUT_BYTES = 32_001  # 250 windows of 128 and the last target

Pair = tuple[Tensor, Tensor]


class Windows(Dataset[Pair]):
    """Consecutive windows of a text; targets are the inputs one byte further.

    Args:
        text: byte values, int64, one dimension.
        context: bytes per window.
    """

    def __init__(self, text: Tensor, context: int) -> None:
        self.text, self.context = text, context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> Pair:
        start = index * self.context
        window = self.text[start : start + self.context + 1]
        return window[:-1], window[1:]


@dataclass(frozen=True)
class Corpus:
    """A text split for training and for judging.

    Args:
        train: windows to train on.
        held_out: windows that the model never trains on.
        unigram_loss: nats per held-out byte of the best model without context, which knows only the
            frequencies of the training bytes.
    """

    train: Windows
    held_out: Windows
    unigram_loss: float


def standard_library(context: int = 128) -> Corpus:
    """Return the first `TEXT_BYTES` of the library's top-level modules in the order of their names.

    The same version of the interpreter always gives the same text. The held-out bytes are the last ones.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    # _sysconfigdata describes the build of this interpreter, so it differs between equal versions.
    modules = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_sysconfigdata"))
    text = b"".join(path.read_bytes() for path in modules)[:TEXT_BYTES]
    values = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    train, held_out = values[:-HELD_OUT_BYTES], values[-HELD_OUT_BYTES:]
    return Corpus(Windows(train, context), Windows(held_out, context), unigram_loss(train, held_out))


def unigram_loss(train: Tensor, held_out: Tensor) -> float:
    """Return nats per byte of ``held_out`` under the byte frequencies of ``train``, each count plus one."""
    counts = torch.bincount(train, minlength=256).double() + 1
    return float(-(counts / counts.sum()).log()[held_out].mean())


def batches(dataset: Windows, size: int, steps: int) -> Iterator[Pair]:
    """Yield ``steps`` shuffled batches; begin a new epoch at the end of each one."""
    while True:
        for batch in DataLoader(dataset, batch_size=size, shuffle=True, drop_last=True):
            if steps == 0:
                return
            steps -= 1
            yield batch
