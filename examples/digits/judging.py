"""What the model is worth: the share of images it never saw that it names correctly."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Score(Protocol):
    """Batches to judge by, and sums over all of them. ``elastane``'s scores are such; so is `LocalScore`."""

    @property
    def sums(self) -> dict[str, float]: ...

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]: ...

    def add(self, **values: Tensor | float) -> None: ...


class LocalScore:
    """The plain one: a data loader and a dictionary."""

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
    """One line for people."""
    model.eval()
    for images, labels in score:
        score.add(correct=(model(images).argmax(dim=1) == labels).sum(), seen=len(labels))
    model.train()
    correct, seen = score.sums["correct"], score.sums["seen"]
    return f"held-out accuracy {100 * correct / seen:.2f} % ({correct:.0f} of {seen:.0f})"
