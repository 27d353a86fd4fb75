"""The judgement of the model: its accuracy on images that it never saw."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Score(Protocol):
    """Batches to judge by, and sums over all of them: a score of ``elastane``, or a `LocalScore`."""

    @property
    def sums(self) -> dict[str, float]: ...

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]: ...

    def add(self, **values: Tensor | float) -> None: ...


class LocalScore:
    """A score without Elastane: a data loader and a dictionary."""

    def __init__(self, dataset: TensorDataset, microbatch: int) -> None:
        self.loader = DataLoader(dataset, batch_size=microbatch)
        self.sums: dict[str, float] = defaultdict(float)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return iter(self.loader)

    def add(self, **values: Tensor | float) -> None:
        for name, value in values.items():
            self.sums[name] += float(value)


@torch.no_grad()
def report(model: nn.Module, score: Score) -> str:
    """Return the accuracy as one line of text."""
    model.eval()
    for images, labels in score:
        score.add(correct=(model(images).argmax(dim=1) == labels).sum(), seen=len(labels))
    model.train()
    correct, seen = score.sums["correct"], score.sums["seen"]
    return f"held-out accuracy {100 * correct / seen:.2f} % ({correct:.0f} of {seen:.0f})"
