"""A small network that gives a payment a score: the higher, the more likely a fraud."""

import torch
from torch import Tensor, nn

from data import KINDS


class Scorer(nn.Module):
    """``forward`` takes numbers (B, 4) and kinds of merchants (B), and returns scores (B)."""

    def __init__(self, width: int = 128, dropout: float = 0.1) -> None:
        super().__init__()
        self.kinds = nn.Embedding(KINDS, 8)
        self.layers = nn.Sequential(
            nn.Linear(4 + 8, width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, 1),
        )

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        scores: Tensor = self.layers(torch.cat([numbers, self.kinds(kinds)], dim=1)).squeeze(1)
        return scores
