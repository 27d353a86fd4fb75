"""The judgement of the model: its loss on text that it never saw."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from data import Corpus, Pair, Windows


class Score(Protocol):
    """Batches to judge by, and sums over all of them: a score of ``elastane``, or a `LocalScore`."""

    @property
    def sums(self) -> dict[str, float]: ...

    def __iter__(self) -> Iterator[Pair]: ...

    def add(self, **values: Tensor | float) -> None: ...


class LocalScore:
    """A score without Elastane: a data loader and a dictionary."""

    def __init__(self, dataset: Windows, microbatch: int) -> None:
        self.loader = DataLoader(dataset, batch_size=microbatch)
        self.sums: dict[str, float] = defaultdict(float)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.loader)

    def add(self, **values: Tensor | float) -> None:
        for name, value in values.items():
            self.sums[name] += float(value)


@torch.no_grad()
def held_out_loss(model: nn.Module, score: Score) -> float:
    """Return nats per byte over all batches of ``score``, without dropout."""
    model.eval()
    for inputs, targets in score:
        loss = F.cross_entropy(model(inputs), targets, reduction="sum")
        score.add(loss=loss, seen=targets.numel())
    model.train()
    return score.sums["loss"] / score.sums["seen"]


def report(step: int, model: nn.Module, score: Score, corpus: Corpus) -> str:
    """Return the loss as one line of text."""
    return (
        f"step {step}: held-out loss {held_out_loss(model, score):.3f} nats per byte"
        f" (byte frequencies alone: {corpus.unigram_loss:.3f})"
    )
